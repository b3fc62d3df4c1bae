-- expect: cpu_limit
-- Loops in __eq, __lt and __le.
agent = {}
function agent.resolve(args, config, context)
    local busy = function() for _ = 1, 1000 do end return false end
    local meta = { __eq = busy, __lt = busy, __le = busy }
    local a, b = setmetatable({}, meta), setmetatable({}, meta)
    while not (a == b or a < b or a <= b) do end
end
