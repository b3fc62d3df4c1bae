-- expect: memory_limit limits={cpu_s=3}
-- Reads three million empty fields, and keeps them.
agent = {}
function agent.resolve(args, config, context)
    local all = {}
    for i = 1, 10 do all[i] = csv.parse((","):rep(300000)) end
    return #all
end
