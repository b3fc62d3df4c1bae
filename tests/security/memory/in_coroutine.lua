-- expect: memory_limit
-- Fills the memory in a coroutine whose error wrap passes on.
agent = {}
function agent.resolve(args, config, context)
    coroutine.wrap(function() return string.rep("x", 100000000) end)()
end
