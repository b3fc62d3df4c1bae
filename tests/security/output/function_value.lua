-- expect: script_error message="the answer of agent.resolve: value.messages[1] is a function"
-- Returns a function.
agent = {}
function agent.resolve(args, config, context)
    return { messages = { print } }
end
