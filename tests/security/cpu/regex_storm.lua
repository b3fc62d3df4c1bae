-- expect: cpu_limit
-- Searches a long text again and again with a pattern that makes backtracking engines exponential.
agent = {}
function agent.resolve(args, config, context)
    local text = ("a"):rep(1000000)
    while true do regex.find(text, "(a|aa)+$b") end
end
