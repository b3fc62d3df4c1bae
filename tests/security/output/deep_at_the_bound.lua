-- expect: ok
-- Returns a value of exactly 64 levels.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for _ = 1, 63 do t = { t } end
    return t
end
