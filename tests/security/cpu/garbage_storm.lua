-- expect: cpu_limit
-- Makes garbage as fast as it can, which keeps the collector busy.
agent = {}
function agent.resolve(args, config, context)
    local t
    while true do t = { { {}, {} }, ("x"):rep(100) } end
end
