-- expect: ok value="first"
-- Replaces its own method while it runs.
agent = {}
function agent.resolve(args, config, context)
    agent.resolve = function() return "second" end
    agent = nil
    context.sources()
    return "first"
end
