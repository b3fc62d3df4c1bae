-- expect: memory_limit limits={memory_bytes=1}
-- Has one byte of memory and asks for half a megabyte.
agent = {}
function agent.resolve(args, config, context)
    return #("x"):rep(500000)
end
