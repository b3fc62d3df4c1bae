-- expect: ok value=true
-- Tries to see the private tag of a host call by wrapping resume, wrap and yield around the call.
agent = {}
function agent.resolve(args, config, context)
    local seen = {}
    local inner = coroutine.create(function() return context.search("deploy") end)
    local results = table.pack(coroutine.resume(inner))
    for i = 1, results.n do seen[#seen + 1] = type(results[i]) end
    return results.n == 2 and seen[1] == "boolean" and seen[2] == "table" and coroutine.status(inner) == "dead"
        and results[2][1] ~= nil and results[2][1].id ~= nil
end
