-- expect: cpu_limit|script_error
-- Sorts with a comparator that always says yes, over and over.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 5000 do t[i] = i % 7 end
    while true do
        pcall(table.sort, t, function() return true end)
    end
end
