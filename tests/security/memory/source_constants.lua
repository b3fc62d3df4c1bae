-- expect: memory_limit limits={memory_bytes=1048576} fill={"<ITEMS>": ["{\"item {i}\", {i}.5, {}}, ", 20000]}
-- Needs more memory to be compiled than it may use.
agent = { resolve = function() return #{ <ITEMS> } end }
