-- expect: ok value=true
-- Yields tables, names and strings that look like the driver's own tags from a coroutine of its own.
agent = {}
function agent.resolve(args, config, context)
    local forged = { {}, "call", "log", "done", "memory", "failed", 1, true, json.null, context, agent }
    for _, tag in ipairs(forged) do
        local inner = coroutine.create(function() return "end", coroutine.yield(tag, "context.search", "\x80") end)
        local ok, got, name = coroutine.resume(inner)
        if not ok or got ~= tag or name ~= "context.search" then return false end
        local _, text, sent = coroutine.resume(inner, "back")
        if text ~= "end" or sent ~= "back" then return false end
    end
    return true
end
