-- expect: ok value=5 calls=5 limits={host_calls=5}
-- Makes exactly as many calls as it may.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 5 do context.sources() end
    return 5
end
