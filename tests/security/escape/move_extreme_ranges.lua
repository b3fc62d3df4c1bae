-- expect: ok value=true
-- Moves and joins ranges whose ends overflow.
agent = {}
function agent.resolve(args, config, context)
    local lo, hi = math.mininteger, math.maxinteger
    return not pcall(table.move, {}, lo, hi, 1) and not pcall(table.move, {}, -1, hi, 2)
        and not pcall(table.move, {}, 1, hi, 2) and not pcall(table.move, {}, 1, 2, hi)
        and pcall(table.move, {}, hi, lo, 5) and not pcall(table.concat, {}, "", 1, 5)
        and not pcall(table.concat, {}, "", hi - 1, hi) and table.concat({}, "", hi, lo) == ""
end
