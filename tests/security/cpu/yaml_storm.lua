-- expect: cpu_limit limits={memory_bytes=67108864}
-- Reads a megabyte of YAML until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local long, keys = ("- a: {b: c}\n"):rep(30000), ("? "):rep(500000)
    while true do pcall(yaml.parse, long) pcall(yaml.parse, keys) pcall(yaml.parse, ("a"):rep(1000000) .. ":") end
end
