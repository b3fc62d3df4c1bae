-- expect: ok args={"s": "text", "i": 7, "f": 7.0, "b": false, "n": null, "l": [1, null, 3], "u": "ß€𝄞"} value=["text", "integer", "float", "boolean", "nil", 1, 3, 3]
-- Receives arguments of every type.
agent = {}
function agent.resolve(args, config, context)
    return {
        args.s, math.type(args.i), math.type(args.f), type(args.b), type(args.n), args.l[1], args.l[3], utf8.len(args.u),
    }
end
