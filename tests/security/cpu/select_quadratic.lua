-- expect: cpu_limit
-- Walks a long argument list with select, which is quadratic.
agent = {}
local function sum(...)
    local n = 0
    for i = 1, select("#", ...) do n = n + select(i, ...) end
    return n
end
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 50000 do t[i] = i end
    while true do sum(table.unpack(t)) end
end
