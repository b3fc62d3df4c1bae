-- expect: memory_limit
-- Keeps coroutines that have started and never end.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    while true do
        local inner = coroutine.create(function() coroutine.yield() end)
        coroutine.resume(inner)
        t[#t + 1] = inner
    end
end
