-- expect: cpu_limit
-- Loops in a coroutine, which hooks of the main thread do not see.
agent = {}
function agent.resolve(args, config, context)
    coroutine.wrap(function() while true do end end)()
end
