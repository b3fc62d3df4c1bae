-- expect: cpu_limit
-- Replaces all matches where each search must look to the end of the text.
agent = {}
function agent.resolve(args, config, context)
    return regex.gsub(("a"):rep(1000000), "a.*b|a", "")
end
