-- expect: output_limit
-- Returns a text of two megabytes.
agent = {}
function agent.resolve(args, config, context)
    return ("x"):rep(2000000)
end
