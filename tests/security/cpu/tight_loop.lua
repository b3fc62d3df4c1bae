-- expect: cpu_limit
-- Loops without end.
agent = {}
function agent.resolve(args, config, context)
    while true do end
end
