-- expect: cpu_limit limits={memory_bytes=67108864}
-- Compresses five megabytes until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local data = ("abcdefghij"):rep(500000)
    while true do gzip.decompress(gzip.compress(data)) end
end
