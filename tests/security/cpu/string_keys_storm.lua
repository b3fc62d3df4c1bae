-- expect: cpu_limit
-- Makes strings and uses them as keys of one table, as attacks on hash tables do.
agent = {}
function agent.resolve(args, config, context)
    local n = 0
    while true do
        local t = {}
        for i = 1, 1000 do t[("k"):rep(40) .. (i * 65537 + n) .. ("z"):rep(40)] = i end
        n = n + 1
    end
end
