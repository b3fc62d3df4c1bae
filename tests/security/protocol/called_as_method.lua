-- expect: ok value=[false, false, true]
-- Calls the functions of the context with the context as first argument, as methods are called.
agent = {}
function agent.resolve(args, config, context)
    return { (pcall(context.search, context, "deploy")), (pcall(context.get, context)), (pcall(context.sources, context)) }
end
