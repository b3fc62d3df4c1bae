-- expect: cpu_limit
-- Hashes five megabytes until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local data = ("x"):rep(5000000)
    while true do hash.sha512(data) end
end
