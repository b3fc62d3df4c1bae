-- expect: ok value="fresh" runs=2
-- Leaves a metatable on library tables and on the environment.
agent = {}
function agent.resolve(args, config, context)
    for _, t in ipairs({ _G, string, table, json, math }) do
        if getmetatable(t) then return "found a metatable" end
        setmetatable(t, { __index = function() return 1 end })
    end
    return "fresh"
end
