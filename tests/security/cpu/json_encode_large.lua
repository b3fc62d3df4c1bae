-- expect: cpu_limit limits={memory_bytes=67108864}
-- Encodes a list of a hundred thousand items again and again.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 100000 do t[i] = i * 1.5 end
    while true do json.encode(t) end
end
