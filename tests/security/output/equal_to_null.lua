-- expect: ok value=[{"a": 1}, null]
-- Returns a table whose __eq claims that it is json.null.
agent = {}
function agent.resolve(args, config, context)
    local yes = { __eq = function() return true end }
    return { setmetatable({ a = 1 }, yes), json.null }
end
