-- expect: cpu_limit
-- Catches whatever is raised and goes on.
agent = {}
function agent.resolve(args, config, context)
    while true do
        pcall(function() while true do end end)
    end
end
