-- expect: cpu_limit limits={memory_bytes=134217728}
-- Reads a megabyte of quotes as CSV until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local quotes = ('""'):rep(500000)
    while true do pcall(csv.parse, quotes) end
end
