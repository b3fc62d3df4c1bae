-- expect: script_error message~"field 'getenv'"
-- Reads the host's environment, where secrets are often kept.
agent = {}
function agent.resolve(args, config, context)
    return os.getenv("PATH")
end
