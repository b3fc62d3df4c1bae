-- expect: ok value=[8, 14, 6, -13, 48, 3, 255]
-- Uses the operators on bits.
agent = {}
function agent.resolve(args, config, context)
    return { 12 & 10, 12 | 10, 12 ~ 10, ~12, 12 << 2, 12 >> 2, -1 >> 56 }
end
