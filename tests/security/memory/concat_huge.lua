-- expect: memory_limit
-- Joins a list whose text does not fit, of one item that does.
agent = {}
function agent.resolve(args, config, context)
    local t, s = {}, ("x"):rep(1000000)
    for i = 1, 1000 do t[i] = s end
    return #table.concat(t)
end
