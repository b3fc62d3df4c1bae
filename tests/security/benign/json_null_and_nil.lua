-- expect: ok value=[true, 1, "null", null, {"kept": null}]
-- Tells null from nil where that is asked for.
agent = {}
function agent.resolve(args, config, context)
    local plain = json.decode('{"a": null, "b": 1}')
    local kept = json.decode('{"kept": null}', { null = json.null })
    return { plain.a == nil, plain.b, tostring(json.null), json.null, kept }
end
