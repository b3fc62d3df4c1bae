-- expect: ok value=true
-- Replaces the coroutine library to intercept a host call.
agent = {}
function agent.resolve(args, config, context)
    local caught = 0
    local real = coroutine.resume
    coroutine.yield = function() caught = caught + 1 end
    coroutine.resume = function(...) caught = caught + 1 return real(...) end
    coroutine.isyieldable = function() return false end
    local found = context.search("deploy")
    return caught == 0 and #found > 0
end
