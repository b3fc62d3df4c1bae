-- expect: cpu_limit
-- Counts to the largest integer.
agent = {}
function agent.resolve(args, config, context)
    for i = math.mininteger, math.maxinteger do end
end
