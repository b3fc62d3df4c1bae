-- expect: cpu_limit
-- Makes every unknown global loop for ever; known to hang hosts that look up globals outside the deadline.
agent = {}
function agent.resolve(args, config, context)
    setmetatable(_G, { __index = function() while true do end end })
    error(setmetatable({}, { __tostring = function() return unknown_name end }))
end
