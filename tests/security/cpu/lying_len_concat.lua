-- expect: cpu_limit limits={memory_bytes=67108864}
-- Joins a table that claims 2^40 empty texts.
agent = {}
function agent.resolve(args, config, context)
    local t = setmetatable({}, { __len = function() return 1 << 40 end, __index = function() return "" end })
    return table.concat(t)
end
