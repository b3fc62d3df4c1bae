-- expect: ok value=true calls=0 limits={memory_bytes=67108864}
-- Calls the host with an argument of four megabytes: it never leaves the worker.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(context.search, ("x"):rep(4000000))
    return not ok and why:find("is larger than", 1, true) ~= nil
end
