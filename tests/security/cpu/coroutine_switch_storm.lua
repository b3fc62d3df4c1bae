-- expect: cpu_limit
-- Switches between coroutines without end.
agent = {}
function agent.resolve(args, config, context)
    local inner = coroutine.wrap(function() while true do coroutine.yield() end end)
    while true do inner() end
end
