-- expect: ok value=true
-- Unpacks beyond the end of the data, with lengths that the data itself claims and positions that wrap around.
agent = {}
function agent.resolve(args, config, context)
    local cases = {
        { "s4", "\xff\xff\xff\x7fabc" }, { "s8", ("\xff"):rep(8) .. "abc" }, { "i8", "short" }, { "c1000000", "x" },
        { "z", "no end" }, { "i16", ("\xff"):rep(15) .. "\x01" }, { "i4", "abcd", 2 },
        { "i4", "abcd", math.maxinteger }, { "s", "\xff\xff\xff\xff\xff\xff\xff\xff" },
    }
    for i, case in ipairs(cases) do
        if pcall(string.unpack, table.unpack(case)) then return i end
    end
    return true
end
