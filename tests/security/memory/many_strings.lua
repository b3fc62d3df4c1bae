-- expect: memory_limit
-- Keeps many different texts.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, math.huge do t[i] = ("x"):rep(1000) .. i end
end
