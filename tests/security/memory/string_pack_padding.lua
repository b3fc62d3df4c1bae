-- expect: memory_limit
-- Pads a packed text to a hundred megabytes.
agent = {}
function agent.resolve(args, config, context)
    return #string.pack("c100000000", "x")
end
