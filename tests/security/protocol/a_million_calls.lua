-- expect: call_limit limits={cpu_s=3}
-- Calls the host a million times.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 1000000 do context.sources() end
end
