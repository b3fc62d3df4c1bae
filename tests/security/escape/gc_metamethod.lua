-- expect: script_error message~"__gc is not available"
-- Sets a finalizer, which would run outside every check.
agent = {}
function agent.resolve(args, config, context)
    setmetatable({}, { __gc = function() while true do end end })
    return true
end
