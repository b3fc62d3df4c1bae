-- expect: timeout limits={timeout_s=0.4, cpu_s=10}
-- Waits in a coroutine, under pcall, for a host call that is never answered.
agent = {}
function agent.resolve(args, config, context)
    coroutine.wrap(function()
        while true do pcall(context.search, "stall") end
    end)()
end
