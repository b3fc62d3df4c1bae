-- expect: ok value=[1, 3, 2, 0]
-- Loops to the ends of the integers: the control variable must not wrap around.
agent = {}
function agent.resolve(args, config, context)
    local hi, lo = math.maxinteger, math.mininteger
    local a, b, c, d = 0, 0, 0, 0
    for _ = hi, hi do a = a + 1 end
    for _ = lo + 2, lo, -1 do b = b + 1 end
    for _ = hi - 4, hi, 3 do c = c + 1 end
    for _ = 1, 0 / 0 do d = d + 1 end
    return { a, b, c, d }
end
