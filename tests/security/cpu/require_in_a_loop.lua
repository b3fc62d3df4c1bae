-- expect: ok value=10000 files={"a.lua": "count = (count or 0) + 1 return count"}
-- Requires one file 10,000 times: it runs once.
agent = {}
function agent.resolve(args, config, context)
    local sum = 0
    for _ = 1, 10000 do sum = sum + require("./a") end
    return sum
end
