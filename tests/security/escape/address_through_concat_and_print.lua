-- expect: ok value=true log~"table\tfunction\tthread" logs=1
-- Writes values to the log, which is shown to people.
agent = {}
function agent.resolve(args, config, context)
    print({}, print, coroutine.create(print))
    return true
end
