-- expect: output_limit limit="value_depth" message~"contains itself"
-- Returns a table that contains itself.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    t.self = t
    return t
end
