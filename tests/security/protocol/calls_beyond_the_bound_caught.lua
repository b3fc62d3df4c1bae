-- expect: call_limit limits={host_calls=5}
-- Makes one call more than it may, under pcall: the end of the run cannot be caught.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 6 do pcall(context.sources) end
    while true do end
end
