-- expect: ok value={"resumed": false, "why": "cannot resume non-suspended coroutine"}
-- Resumes the coroutine that the run itself is.
agent = {}
function agent.resolve(args, config, context)
    local main = coroutine.running()
    local ok, why = coroutine.resume(main)
    return { resumed = ok, why = why }
end
