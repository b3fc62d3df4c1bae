-- expect: cpu_limit
-- Backtracks through greedy repetitions at every start position.
agent = {}
function agent.resolve(args, config, context)
    return (("a"):rep(5000)):find(".*.*.*.*b")
end
