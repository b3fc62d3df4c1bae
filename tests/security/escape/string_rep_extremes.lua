-- expect: ok value=true
-- Repeats strings to lengths that overflow.
agent = {}
function agent.resolve(args, config, context)
    return not pcall(string.rep, "x", math.maxinteger) and not pcall(string.rep, "xx", 2 ^ 62 // 1 | 0, "yy")
        and string.rep("x", -1) == "" and string.rep("x", math.mininteger) == ""
end
