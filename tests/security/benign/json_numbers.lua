-- expect: ok value=["1", "1.0", "-0.0", "1e+300", "0.10000000000000001", "float", "float"]
-- Keeps integers and floats apart in JSON, and turns what is beyond 64 bits into floats.
agent = {}
function agent.resolve(args, config, context)
    return {
        json.encode(1), json.encode(1.0), json.encode(-0.0), json.encode(1e300):gsub("1.0000000000000001e%+300", "1e+300"),
        json.encode(0.1), math.type(json.decode("18446744073709551616")), math.type(json.decode("1e2")),
    }
end
