-- expect: ok value=[42, "text", true, null, 1.5]
-- Returns plain values of every type where tables are usual; the engine passes them on.
agent = {}
function agent.resolve(args, config, context)
    return { 42, "text", true, json.null, 1.5 }
end
