-- expect: memory_limit
-- Formats one long text into many places.
agent = {}
function agent.resolve(args, config, context)
    local s = ("x"):rep(1000000)
    local values = {}
    for i = 1, 100 do values[i] = s end
    return #string.format(("%s"):rep(100), table.unpack(values))
end
