-- expect: ok value=200 calls=200 limits={cpu_s=3, output_bytes=1048576, memory_bytes=67108864}
-- Sends half a megabyte with every call it may make.
agent = {}
function agent.resolve(args, config, context)
    local text = ("x"):rep(500000)
    local n = 0
    for _ = 1, 200 do
        pcall(context.get, text)
        n = n + 1
    end
    return n
end
