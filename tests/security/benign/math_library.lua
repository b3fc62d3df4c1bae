-- expect: ok value=[3, 1, 2, -1, 2, 0.5, 3.14, 5, true, true]
-- Uses the library of mathematics.
agent = {}
function agent.resolve(args, config, context)
    local whole, part = math.modf(2.5)
    math.randomseed(1)
    local dice = math.random(6)
    return {
        math.max(1, 3, 2), math.min(3, 1, 2), math.floor(2.9), math.ceil(-1.5), whole // 1 | 0, part,
        math.floor(math.pi * 100) / 100, math.abs(-5), dice >= 1 and dice <= 6, math.ult(1, -1),
    }
end
