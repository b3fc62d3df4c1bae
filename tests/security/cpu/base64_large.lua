-- expect: cpu_limit limits={memory_bytes=134217728}
-- Encodes and decodes 3 MB as base64 until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local data = ("x"):rep(500000)
    while true do base64.decode(base64.encode(data)) end
end
