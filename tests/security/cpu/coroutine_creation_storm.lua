-- expect: cpu_limit
-- Creates coroutines that it never resumes.
agent = {}
function agent.resolve(args, config, context)
    while true do coroutine.create(print) end
end
