-- expect: script_error message~"overflow" fill={"<OPEN>": ["(", 100000]}
-- Nests a hundred thousand parentheses.
agent = { resolve = function() return <OPEN>1 end }
