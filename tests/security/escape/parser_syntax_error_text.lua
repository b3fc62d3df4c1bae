-- expect: script_error message~"near" fill={"<NAME>": ["n", 100000]}
-- Makes a syntax error beside a name of 100 kB: the message is bounded.
agent = { resolve = function() return <NAME> <NAME> end }
