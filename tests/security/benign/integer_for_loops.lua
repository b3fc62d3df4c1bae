-- expect: ok value=[[1, 3, 5], [5, 3, 1], [1.0, 1.5, 2.0], 0]
-- Counts up, down, by fractions and not at all.
agent = {}
function agent.resolve(args, config, context)
    local up, down, half, none = {}, {}, {}, 0
    for i = 1, 5, 2 do up[#up + 1] = i end
    for i = 5, 1, -2 do down[#down + 1] = i end
    for x = 1.0, 2.0, 0.5 do half[#half + 1] = x end
    for _ = 1, 0 do none = none + 1 end
    return { up, down, half, none }
end
