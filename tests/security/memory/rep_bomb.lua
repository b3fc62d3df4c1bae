-- expect: memory_limit
-- Repeats one letter to a hundred megabytes.
agent = {}
function agent.resolve(args, config, context)
    return #string.rep("x", 100000000)
end
