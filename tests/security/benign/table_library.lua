-- expect: ok value=["a,b,c", "x", "c", 2, [2, 3], [1, 2, 3], 3]
-- Inserts, removes, packs, unpacks and moves.
agent = {}
function agent.resolve(args, config, context)
    local t = { "a", "b" }
    table.insert(t, "c")
    table.insert(t, 1, "x")
    local first, last = table.remove(t, 1), nil
    local joined = table.concat(t, ",")
    last = table.remove(t)
    local packed = table.pack(1, nil, 3)
    return {
        joined, first, last, #t, { select(2, table.unpack({ 1, 2, 3 })) }, table.move({ 1, 2, 3 }, 1, 3, 1, {}), packed.n,
    }
end
