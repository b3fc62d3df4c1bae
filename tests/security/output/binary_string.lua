-- expect: ok value={"data": "\ufffd\ufffd\u0000"} log~"the answer of agent.resolve: value.data is not UTF-8"
-- Returns bytes that are no text.
agent = {}
function agent.resolve(args, config, context)
    return { data = "\xff\xfe\x00" }
end
