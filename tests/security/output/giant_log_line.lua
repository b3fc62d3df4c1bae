-- expect: ok value=true logs=1 log~"[log truncated: limit reached]"
-- Writes one log line of four megabytes.
agent = {}
function agent.resolve(args, config, context)
    log.error(("x"):rep(4000000))
    log.error("after")
    return true
end
