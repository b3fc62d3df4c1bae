-- expect: ok value={"a": 1, "b": [2]}
-- Replaces iteration so that an encoder that used it would see other values.
agent = {}
function agent.resolve(args, config, context)
    next = function() return nil end
    pairs = function() return function() return nil end end
    ipairs = pairs
    rawget, rawlen, rawequal, type = nil, nil, nil, nil
    return { a = 1, b = { 2 } }
end
