-- expect: ok value=[{"x": 1}, {"x": 1}]
-- Returns the same table twice, which is no cycle.
agent = {}
function agent.resolve(args, config, context)
    local t = { x = 1 }
    return { t, t }
end
