-- expect: memory_limit
-- Quotes control bytes, each of which takes four.
agent = {}
function agent.resolve(args, config, context)
    return #string.format("%q", ("\1"):rep(4000000) .. "1")
end
