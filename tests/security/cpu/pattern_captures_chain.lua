-- expect: cpu_limit
-- Backtracks through captures of anything.
agent = {}
function agent.resolve(args, config, context)
    return (("x"):rep(3000)):match(("(.-)"):rep(8) .. "y")
end
