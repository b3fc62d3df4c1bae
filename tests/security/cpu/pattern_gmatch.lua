-- expect: cpu_limit
-- Walks a long text with a pattern that scans to its end at every step.
agent = {}
function agent.resolve(args, config, context)
    local n = 0
    for _ in (("a"):rep(200000)):gmatch("a.-b") do n = n + 1 end
    return n
end
