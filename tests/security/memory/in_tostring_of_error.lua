-- expect: script_error message="(the error is a table value)"
-- Fills the memory while its error object is being described.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() return ("x"):rep(100000000) end }))
end
