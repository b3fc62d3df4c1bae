-- expect: ok value=[3, 0, 6, "1-nil-3", 2, 3]
-- Counts, sums, packs and passes on arguments, also absent ones.
agent = {}
local function count(...) return select("#", ...) end
local function sum(...)
    local total = 0
    for _, n in ipairs({ ... }) do total = total + n end
    return total
end
local function shown(...)
    local parts = table.pack(...)
    for i = 1, parts.n do parts[i] = tostring(parts[i]) end
    return table.concat(parts, "-")
end
function agent.resolve(args, config, context)
    return { count(1, nil, nil), count(), sum(1, 2, 3), shown(1, nil, 3), (select(2, 1, 2, 3)), (select(-1, 1, 2, 3)) }
end
