-- expect: ok value=[true, true, true]
-- Reads the clocks, which go forward.
agent = {}
function agent.resolve(args, config, context)
    local a, b = os.clock(), os.time()
    local n = 0
    for i = 1, 10000 do n = n + i end
    return { os.clock() >= a, os.time() >= b, b > 1700000000 }
end
