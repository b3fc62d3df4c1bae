-- expect: cpu_limit
-- Looks for balanced brackets that never close: quadratic in C.
agent = {}
function agent.resolve(args, config, context)
    return (("("):rep(300000)):find("%b()x")
end
