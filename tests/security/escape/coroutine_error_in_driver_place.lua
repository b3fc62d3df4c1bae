-- expect: ok value={"closed": true, "ok": false, "status": "dead", "why": "inside"}
-- Fails inside a coroutine that has made a host call, then closes it.
agent = {}
function agent.resolve(args, config, context)
    local inner = coroutine.create(function()
        context.sources()
        error("inside", 0)
    end)
    local ok, why = coroutine.resume(inner)
    local status = coroutine.status(inner)
    return { ok = ok, why = why, status = status, closed = not coroutine.close(inner) }
end
