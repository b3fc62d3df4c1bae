-- expect: ok value=1 runs=5 calls=1
-- Runs again and again in one worker, each time as if for the first time.
agent = {}
n = (n or 0) + 1
function agent.resolve(args, config, context)
    context.sources()
    return n
end
