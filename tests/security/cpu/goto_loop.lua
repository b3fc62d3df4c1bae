-- expect: cpu_limit
-- Loops with goto.
agent = {}
function agent.resolve(args, config, context)
    ::again::
    goto again
end
