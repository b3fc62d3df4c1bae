-- expect: cpu_limit
-- Reseeds and draws random numbers without end.
agent = {}
function agent.resolve(args, config, context)
    while true do math.randomseed() math.random(1, 1 << 40) end
end
