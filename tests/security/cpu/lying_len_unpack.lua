-- expect: ok value=[false, 0]
-- Unpacks a table that claims 2^40 items, or fewer than none.
agent = {}
function agent.resolve(args, config, context)
    local many = setmetatable({}, { __len = function() return 1 << 40 end })
    local none = setmetatable({ 1, 2 }, { __len = function() return -5 end })
    return { (pcall(table.unpack, many)), select("#", table.unpack(none)) }
end
