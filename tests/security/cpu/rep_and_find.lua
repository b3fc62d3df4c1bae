-- expect: cpu_limit limits={memory_bytes=33554432}
-- Searches long texts for a text that differs in its last letter only.
agent = {}
function agent.resolve(args, config, context)
    local hay, needle = ("a"):rep(4000000), ("a"):rep(1999999) .. "b"
    while true do hay:find(needle, 1, true) end
end
