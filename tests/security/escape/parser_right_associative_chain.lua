-- expect: script_error message~"overflow" fill={"<TEXT>": ["'x' .. ", 100000]}
-- Chains a hundred thousand concatenations, which are right associative.
agent = { resolve = function() return #(<TEXT>"y") end }
