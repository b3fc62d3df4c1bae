-- expect: cpu_limit
-- Hashes 4 MB in pure Lua.
agent = {}
function agent.resolve(args, config, context)
    return crypto.sha256(("x"):rep(4000000))
end
