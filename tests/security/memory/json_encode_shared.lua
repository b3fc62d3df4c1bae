-- expect: memory_limit limits={cpu_s=3}
-- Encodes tables that share their parts, so that the text is much larger than the tables.
agent = {}
function agent.resolve(args, config, context)
    local t = { ("x"):rep(1000) }
    for _ = 1, 20 do t = { t, t } end
    return #json.encode(t)
end
