-- expect: ok value=true limits={cpu_s=2}
-- Computes for fifty milliseconds of CPU time, which is legal.
agent = {}
function agent.resolve(args, config, context)
    local start, n = os.clock(), 0
    while os.clock() - start < 0.05 do n = n + 1 end
    return n > 0
end
