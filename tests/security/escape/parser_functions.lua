-- expect: script_error message~"overflow" fill={"<OPEN>": ["function() return ", 50000]}
-- Nests fifty thousand functions.
agent = { resolve = function() return <OPEN>1 end }
