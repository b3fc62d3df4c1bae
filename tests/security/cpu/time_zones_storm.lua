-- expect: cpu_limit
-- Asks for a zone's time until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    while true do for t = 0, 1e9, 1e6 do time.format(t, "Europe/Berlin") end end
end
