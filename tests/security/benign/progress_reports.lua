-- expect: ok value="finished" progress=5
-- Reports progress with and without a text.
agent = {}
function agent.resolve(args, config, context)
    for i = 1, 4 do context.progress(i / 5, "step " .. i) end
    context.progress(1)
    return "finished"
end
