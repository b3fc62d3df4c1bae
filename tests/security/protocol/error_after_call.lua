-- expect: script_error message="corpus:6: after the call" calls=1
-- Fails after a call that worked.
agent = {}
function agent.resolve(args, config, context)
    context.search("deploy")
    error("after the call")
end
