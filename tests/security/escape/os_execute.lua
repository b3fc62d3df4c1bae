-- expect: script_error message~"attempt to call a nil value (field 'execute')"
-- Starts a shell command.
agent = {}
function agent.resolve(args, config, context)
    return os.execute("id")
end
