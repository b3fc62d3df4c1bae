-- expect: ok value={"a": 1}
-- Returns a table whose __eq never ends: the engine compares tables by identity.
agent = {}
function agent.resolve(args, config, context)
    return setmetatable({ a = 1 }, { __eq = function() while true do end end })
end
