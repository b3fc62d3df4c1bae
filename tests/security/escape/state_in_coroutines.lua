-- expect: ok value="fresh" runs=2
-- Leaves a suspended coroutine with a pending host call behind.
agent = {}
function agent.resolve(args, config, context)
    if kept then return "found it" end
    kept = coroutine.create(function() coroutine.yield(context.search("deploy")) end)
    coroutine.resume(kept)
    return "fresh"
end
