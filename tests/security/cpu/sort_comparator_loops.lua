-- expect: cpu_limit
-- Sorts with a comparator that never returns.
agent = {}
function agent.resolve(args, config, context)
    table.sort({ 3, 2, 1 }, function() while true do end end)
end
