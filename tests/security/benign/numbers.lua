-- expect: ok value=[2.5, 2, -3, 1, 1, 1024.0, "integer", "float", -9223372036854775808, 3, 255, true, "1.0", "1", 10]
-- Relies on the rules for integers and floats.
agent = {}
function agent.resolve(args, config, context)
    return {
        5 / 2, 5 // 2, -5 // 2, -5 % 2, 5 % 2, 2 ^ 10, math.type(3), math.type(3.0), math.maxinteger + 1,
        math.tointeger(3.0), tonumber("ff", 16), 1 == 1.0, tostring(1.0), tostring(1), "5" * 2,
    }
end
