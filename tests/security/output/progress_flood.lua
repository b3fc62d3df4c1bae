-- expect: ok value=true progress=1000
-- Reports progress a hundred thousand times; a thousand are passed on.
agent = {}
function agent.resolve(args, config, context)
    for i = 1, 100000 do context.progress(i / 100000, "step") end
    return true
end
