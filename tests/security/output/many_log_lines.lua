-- expect: ok value=true log~"[log truncated: limit reached]" limits={cpu_s=3}
-- Writes a hundred thousand log lines.
agent = {}
function agent.resolve(args, config, context)
    for i = 1, 100000 do print(i) end
    return true
end
