-- expect: ok value=true
-- Keeps the functions of the context, drops the context and calls them later.
agent = {}
function agent.resolve(args, config, context)
    local search = context.search
    for key in pairs(context) do context[key] = nil end
    context = nil
    collectgarbage()
    return #search("deploy") > 0
end
