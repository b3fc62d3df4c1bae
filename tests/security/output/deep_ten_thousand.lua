-- expect: output_limit limit="value_depth"
-- Returns a value of ten thousand levels.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for _ = 1, 10000 do t = { child = t } end
    return t
end
