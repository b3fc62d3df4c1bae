-- expect: memory_limit
-- Repeats a capture many times in the replacement.
agent = {}
function agent.resolve(args, config, context)
    return #(("x"):rep(1000000):gsub(".+", ("%0"):rep(200)))
end
