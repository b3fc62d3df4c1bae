-- expect: ok value=[false, "not enough memory"]
-- Fills the memory in a coroutine whose error resume returns.
agent = {}
function agent.resolve(args, config, context)
    local inner = coroutine.create(function() return string.rep("x", 100000000) end)
    return { coroutine.resume(inner) }
end
