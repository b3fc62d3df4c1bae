-- expect: ok value=["Deploying", "git:runbooks"] calls=2
-- Collects the answers of several coroutines that each call the host.
agent = {}
function agent.resolve(args, config, context)
    local tasks = {
        function() return context.search("platform")[1].title end,
        function() return context.sources()[1].source end,
    }
    local answers = {}
    for i, task in ipairs(tasks) do answers[i] = coroutine.wrap(task)() end
    return answers
end
