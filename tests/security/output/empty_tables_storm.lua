-- expect: output_limit limits={cpu_s=3, memory_bytes=33554432}
-- Returns a million empty tables, each of one byte, that are one and the same.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for _ = 1, 40 do t = { t, t } end
    return t
end
