-- expect: script_error message~"nil"
-- Fails with nil.
agent = {}
function agent.resolve(args, config, context)
    error(nil)
end
