-- expect: cpu_limit
-- Waits by asking for the time over and over.
agent = {}
function agent.resolve(args, config, context)
    local start = os.time()
    while os.difftime(os.time(), start) < 60 do os.clock() os.date("%c") end
end
