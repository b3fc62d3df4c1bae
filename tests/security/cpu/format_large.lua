-- expect: cpu_limit
-- Formats numbers with as many digits as there are.
agent = {}
function agent.resolve(args, config, context)
    while true do string.format("%99.99f %99.99g %.99e %a", 1e308, 1e-308, math.pi, 1 / 3) end
end
