-- expect: script_error message="(the error is a thread value)"
-- Fails with a coroutine as the error.
agent = {}
function agent.resolve(args, config, context)
    error(coroutine.create(print))
end
