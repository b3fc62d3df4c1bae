-- expect: ok value=[false, false, false, false] progress=0
-- Reports progress that is no number.
agent = {}
function agent.resolve(args, config, context)
    return {
        (pcall(context.progress, 0 / 0)), (pcall(context.progress, "1")), (pcall(context.progress)),
        (pcall(context.progress, {}, "x")),
    }
end
