-- expect: script_error message="the answer of agent.resolve: value is a thread"
-- Returns a coroutine.
agent = {}
function agent.resolve(args, config, context)
    return coroutine.create(function() end)
end
