-- expect: cpu_limit
-- Inserts at the front of a table that claims 2^40 items: one endless loop in C.
agent = {}
function agent.resolve(args, config, context)
    table.insert(setmetatable({}, { __len = function() return 1 << 40 end }), 1, "x")
end
