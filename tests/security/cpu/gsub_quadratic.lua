-- expect: cpu_limit
-- Replaces with a pattern that is quadratic in the length of the text.
agent = {}
function agent.resolve(args, config, context)
    return (("a"):rep(200000)):gsub(".-b", "c")
end
