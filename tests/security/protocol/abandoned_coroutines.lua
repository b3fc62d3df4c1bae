-- expect: ok value="left" calls=20
-- Leaves coroutines behind that have called the host and never go on.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 20 do
        local inner = coroutine.create(function()
            context.sources()
            coroutine.yield()
            context.sources()
        end)
        coroutine.resume(inner)
    end
    return "left"
end
