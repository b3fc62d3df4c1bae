-- expect: cpu_limit
-- Combines the frontier pattern with lazy repetitions.
agent = {}
function agent.resolve(args, config, context)
    return (("a "):rep(3000)):find("%f[%w].-%f[%w].-%f[%W].-%f[%w].-z")
end
