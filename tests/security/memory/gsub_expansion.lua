-- expect: memory_limit
-- Replaces each letter by a long text.
agent = {}
function agent.resolve(args, config, context)
    return #(("x"):rep(100000):gsub(".", ("y"):rep(10000)))
end
