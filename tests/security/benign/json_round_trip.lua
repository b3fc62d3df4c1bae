-- expect: ok value={"again": "[1,2.5,\"x\",true,{\"k\":[]}]", "array": "[]", "integers": [9007199254740993, "integer"], "null": "[null]", "object": "{}", "unicode": "ß€𝄞\n"}
-- Encodes and decodes values of every type, empty ones, large integers and escapes.
agent = {}
function agent.resolve(args, config, context)
    local big = json.decode("9007199254740993")
    return {
        again = json.encode(json.decode('[1, 2.5, "x", true, {"k": []}]')),
        object = json.encode({}),
        array = json.encode(json.array({})),
        null = json.encode(json.decode("[null]", { null = json.null })),
        integers = { big, math.type(big) },
        unicode = json.decode('"\\u00df\\u20ac\\ud834\\udd1e\\n"'),
    }
end
