-- expect: cpu_limit
-- Repeats the empty string 2^62 times: one loop in C that allocates nothing.
agent = {}
function agent.resolve(args, config, context)
    return string.rep("", 1 << 62)
end
