-- expect: memory_limit
-- Fills the memory inside a comparator of sort.
agent = {}
function agent.resolve(args, config, context)
    table.sort({ 3, 2, 1 }, function() return #string.rep("x", 100000000) > 0 end)
end
