-- expect: cpu_limit
-- Iterates over something that never ends.
agent = {}
function agent.resolve(args, config, context)
    for _ in function() return 1 end do end
end
