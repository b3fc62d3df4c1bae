-- expect: ok value=true log~"[log truncated: limit reached]" limits={cpu_s=3}
-- Writes many log lines inside callbacks, where they are kept until the run can yield.
agent = {}
function agent.resolve(args, config, context)
    local _ = (("x"):rep(50000)):gsub("x", function() print("a line in a callback") end)
    return true
end
