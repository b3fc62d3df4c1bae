-- expect: script_error message~"__gc"
-- Returns a table that would run a finalizer when the state is closed.
agent = {}
function agent.resolve(args, config, context)
    return setmetatable({}, { __gc = function() while true do end end })
end
