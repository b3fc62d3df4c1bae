-- expect: ok
-- Returns a text just below the limit.
agent = {}
function agent.resolve(args, config, context)
    return ("x"):rep(1024 * 1024 - 16)
end
