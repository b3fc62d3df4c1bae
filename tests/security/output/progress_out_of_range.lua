-- expect: ok value=true progress=3
-- Reports progress beyond its range and backwards, with texts of every kind.
agent = {}
function agent.resolve(args, config, context)
    context.progress(1e300, "\xff\xfe")
    context.progress(-5, ("x"):rep(100000))
    context.progress(0.1, {})
    return true
end
