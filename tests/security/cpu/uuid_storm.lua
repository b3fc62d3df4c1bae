-- expect: cpu_limit
-- Makes identifiers until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    while true do uuid.v4() uuid.v7() end
end
