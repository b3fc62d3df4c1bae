-- expect: output_limit limit="value_depth" message~"contains itself"
-- Returns three tables in a ring.
agent = {}
function agent.resolve(args, config, context)
    local a, b, c = {}, {}, {}
    a.b, b.c, c.a = b, { c }, a
    return a
end
