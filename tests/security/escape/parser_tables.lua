-- expect: script_error message~"overflow" fill={"<OPEN>": ["{", 100000]}
-- Nests a hundred thousand table constructors.
agent = { resolve = function() return <OPEN> end }
