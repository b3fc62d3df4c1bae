-- expect: cpu_limit
-- Backtracks through twelve lazy repetitions inside one call of C, which no hook interrupts.
agent = {}
function agent.resolve(args, config, context)
    return (("a"):rep(2000)):find(("a-"):rep(12) .. "b")
end
