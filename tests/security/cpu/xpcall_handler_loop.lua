-- expect: cpu_limit
-- Loops in the message handler of xpcall.
agent = {}
function agent.resolve(args, config, context)
    xpcall(error, function() while true do end end, "x")
end
