-- expect: ok value=true
-- Builds tables that are their own metatable, key, value and index.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    t.__index, t.__newindex, t[t] = t, t, t
    setmetatable(t, t)
    local ok = pcall(function() return t.missing end)
    return not ok
end
