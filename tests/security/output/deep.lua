-- expect: output_limit limit="value_depth" message~"nested deeper than 64 levels"
-- Returns a value of 150 levels.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for _ = 1, 150 do t = { t } end
    return t
end
