-- expect: ok value=true
-- Unpacks ranges whose length overflows or does not fit the stack.
agent = {}
function agent.resolve(args, config, context)
    local lo, hi = math.mininteger, math.maxinteger
    for _, range in ipairs({ { lo, hi }, { 1, hi }, { lo, 0 }, { 0, hi }, { 1, 1e8 // 1 | 0 }, { hi - 3e6 // 1 | 0, hi } }) do
        if pcall(table.unpack, {}, range[1], range[2]) then return range end
    end
    return select("#", table.unpack({}, hi, lo)) == 0 and select("#", table.unpack({}, hi, hi)) == 1
        and not pcall(string.byte, ("x"):rep(3000000), 1, -1)
end
