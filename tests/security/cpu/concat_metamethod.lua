-- expect: cpu_limit
-- Never returns from __concat.
agent = {}
function agent.resolve(args, config, context)
    return setmetatable({}, { __concat = function() while true do end end }) .. "x"
end
