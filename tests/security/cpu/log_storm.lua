-- expect: cpu_limit
-- Writes log lines without end: beyond the limit they cost the script its own time only.
agent = {}
function agent.resolve(args, config, context)
    while true do log.info("line after line after line") end
end
