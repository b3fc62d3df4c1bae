-- expect: ok value=["changed", "Deploying"] calls=2
-- Changes an answer of the host: the next answer is not touched by it.
agent = {}
function agent.resolve(args, config, context)
    local first = context.search("platform")
    first[1].title = "changed"
    return { first[1].title, context.search("platform")[1].title }
end
