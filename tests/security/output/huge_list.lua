-- expect: output_limit limits={cpu_s=3, memory_bytes=134217728}
-- Returns a list of a million numbers.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 1000000 do t[i] = i end
    return t
end
