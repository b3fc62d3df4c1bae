-- expect: cpu_limit
-- Loops forty coroutines deep.
agent = {}
local function descend(depth)
    if depth == 0 then while true do end end
    return coroutine.wrap(descend)(depth - 1)
end
function agent.resolve(args, config, context)
    return descend(40)
end
