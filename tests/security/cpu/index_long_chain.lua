-- expect: cpu_limit
-- Looks a name up through a chain of a thousand tables, without end.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for _ = 1, 1000 do t = setmetatable({}, { __index = t }) end
    while true do pcall(function() return t.missing end) end
end
