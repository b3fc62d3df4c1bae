-- expect: script_error message~"field 'exit'"
-- Ends the worker process from inside.
agent = {}
function agent.resolve(args, config, context)
    os.exit(0, true)
end
