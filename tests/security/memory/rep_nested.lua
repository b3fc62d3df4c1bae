-- expect: memory_limit
-- Repeats a repeated text with a separator.
agent = {}
function agent.resolve(args, config, context)
    return #(("ab"):rep(100000, ","):rep(1000, ";"))
end
