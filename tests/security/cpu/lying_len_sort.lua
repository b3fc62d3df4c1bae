-- expect: ok value=[false, false]
-- Sorts a table that claims more items than an array can have, or a negative number of them.
agent = {}
function agent.resolve(args, config, context)
    local many = setmetatable({}, { __len = function() return 1 << 40 end })
    local broken = setmetatable({}, { __len = function() return "x" end })
    return { (pcall(table.sort, many)), (pcall(table.sort, broken)) }
end
