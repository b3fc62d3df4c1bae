-- expect: ok value="answer" calls=1
-- Returns its answer from under a coroutine that is suspended after a host call.
agent = {}
function agent.resolve(args, config, context)
    pending = coroutine.wrap(function()
        context.search("deploy")
        coroutine.yield("answer")
        context.search("never")
    end)
    return pending()
end
