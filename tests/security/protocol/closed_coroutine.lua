-- expect: ok value=[false, "dead", 1] calls=1
-- Closes a coroutine after a host call; its pending __close runs inside C and is refused another one.
agent = {}
function agent.resolve(args, config, context)
    local calls = 0
    local inner = coroutine.create(function()
        local guard <close> = setmetatable({}, { __close = function()
            calls = calls + #context.sources()
        end })
        calls = calls + #context.sources()
        coroutine.yield()
    end)
    coroutine.resume(inner)
    local closed = coroutine.wrap(function() return coroutine.close(inner) end)
    local ok, why = pcall(closed)
    return { ok and why, coroutine.status(inner), calls }
end
