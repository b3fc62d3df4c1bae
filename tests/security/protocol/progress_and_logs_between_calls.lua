-- expect: ok value="done" calls=3 logs=3 progress=3
-- Mixes host calls, log lines and progress in coroutines: all arrive, in order.
agent = {}
function agent.resolve(args, config, context)
    local step = coroutine.wrap(function()
        for i = 1, 3 do
            log.info("before " .. i)
            context.sources()
            context.progress(i / 3, "step " .. i)
            coroutine.yield(i)
        end
        return "done"
    end)
    for _ = 1, 3 do step() end
    return step()
end
