-- expect: ok value=[false, true]
-- Lets a coroutine resume itself and its parent around a host call.
agent = {}
function agent.resolve(args, config, context)
    local inner
    local again
    inner = coroutine.create(function()
        again = coroutine.resume(inner)
        return #context.search("deploy") > 0
    end)
    local _, found = coroutine.resume(inner)
    return { again, found }
end
