-- expect: script_error message="(the error is a table value)" calls=0
-- Fails with an object whose __tostring calls the host while the error is described.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() return context.search("deploy")[1].title end }))
end
