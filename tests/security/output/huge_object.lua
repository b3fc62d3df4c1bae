-- expect: output_limit limits={cpu_s=3, memory_bytes=67108864}
-- Returns a table with a hundred thousand keys.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 100000 do t["key number " .. i] = true end
    return t
end
