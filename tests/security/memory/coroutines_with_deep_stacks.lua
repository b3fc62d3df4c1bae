-- expect: memory_limit
-- Keeps coroutines that have each grown a large stack.
agent = {}
local function descend(n)
    if n == 0 then return coroutine.yield() end
    return 1 + descend(n - 1)
end
function agent.resolve(args, config, context)
    local t = {}
    while true do
        local inner = coroutine.create(descend)
        coroutine.resume(inner, 10000)
        t[#t + 1] = inner
    end
end
