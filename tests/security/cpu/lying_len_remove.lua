-- expect: cpu_limit
-- Removes from the front of a table that claims 2^40 items.
agent = {}
function agent.resolve(args, config, context)
    table.remove(setmetatable({}, { __len = function() return 1 << 40 end }), 1)
end
