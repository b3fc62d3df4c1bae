-- expect: ok value=[false, false] progress=0
-- Reports infinite progress, which JSON cannot hold.
agent = {}
function agent.resolve(args, config, context)
    return { (pcall(context.progress, math.huge, "far")), (pcall(context.progress, -math.huge, "back")) }
end
