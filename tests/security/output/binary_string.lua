-- expect: script_error message="the answer of agent.resolve: value.data is a string that is not UTF-8"
-- Returns bytes that are no text.
agent = {}
function agent.resolve(args, config, context)
    return { data = "\xff\xfe\x00" }
end
