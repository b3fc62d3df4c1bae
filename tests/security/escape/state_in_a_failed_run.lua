-- expect: script_error message="first time" runs=2
-- Fails after it left state: the worker of a failed run is not used again.
agent = {}
function agent.resolve(args, config, context)
    if seen then error("second time", 0) end
    seen = true
    string.seen = true
    error("first time", 0)
end
