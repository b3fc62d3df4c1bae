-- expect: cpu_limit
-- Sorts with a comparator that answers at random.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 20000 do t[i] = i end
    while true do
        pcall(table.sort, t, function() return math.random() < 0.5 end)
    end
end
