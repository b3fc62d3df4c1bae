-- expect: script_error message~"context.search is not granted to 'corpus'" grants=[]
-- Makes a call without any grant and does not catch the refusal.
agent = {}
function agent.resolve(args, config, context)
    return context.search("deploy")
end
