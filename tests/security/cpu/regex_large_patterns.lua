-- expect: cpu_limit limits={memory_bytes=134217728}
-- Compiles one large pattern after another.
agent = {}
function agent.resolve(args, config, context)
    for i = 1, 1e9 do pcall(regex.find, "a", i .. (("\\pL{1,9}"):rep(500))) end
end
