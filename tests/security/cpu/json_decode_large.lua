-- expect: cpu_limit limits={memory_bytes=67108864}
-- Decodes a text of 1 MB again and again.
agent = {}
function agent.resolve(args, config, context)
    local text = "[" .. ('"abc\\u00e9",'):rep(80000) .. "1]"
    while true do json.decode(text) end
end
