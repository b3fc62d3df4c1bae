-- expect: script_error message~"agent.resolve is not a function but a table value"
-- Declares a callable table instead of a function.
agent = { resolve = setmetatable({}, { __call = function() return 1 end }) }
