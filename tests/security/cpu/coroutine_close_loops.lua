-- expect: cpu_limit
-- Closes a coroutine whose pending __close never returns.
agent = {}
function agent.resolve(args, config, context)
    local inner = coroutine.create(function()
        local guard <close> = setmetatable({}, { __close = function() while true do end end })
        coroutine.yield()
    end)
    coroutine.resume(inner)
    coroutine.close(inner)
end
