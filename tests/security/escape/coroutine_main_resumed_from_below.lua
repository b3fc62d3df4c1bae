-- expect: ok value=[false, "cannot resume non-suspended coroutine", "normal"]
-- Resumes the run's coroutine from a coroutine inside it.
agent = {}
function agent.resolve(args, config, context)
    local main = coroutine.running()
    local inner = coroutine.wrap(function()
        local ok, why = coroutine.resume(main)
        return { ok, why, coroutine.status(main) }
    end)
    return inner()
end
