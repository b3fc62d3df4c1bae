-- expect: script_error message="(the error is a table value)"
-- Fails with an object whose __tostring returns no string.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() return {} end }))
end
