-- expect: script_error message~"is a function"
-- Returns its context.
agent = {}
function agent.resolve(args, config, context)
    return context
end
