-- expect: ok value=[9223372036854775807, -9223372036854775808, 1.7976931348623157e+308, 5e-324, -0.0]
-- Returns the extremes of integers and floats.
agent = {}
function agent.resolve(args, config, context)
    return { math.maxinteger, math.mininteger, 1.7976931348623157e308, 5e-324, -0.0 }
end
