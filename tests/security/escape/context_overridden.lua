-- expect: ok value=["mine", true]
-- Replaces functions of its own context; nothing but its own view changes.
agent = {}
function agent.resolve(args, config, context)
    local real = context.search
    context.search = function() return "mine" end
    context.config = nil
    return { context.search("deploy"), #real("deploy") > 0 }
end
