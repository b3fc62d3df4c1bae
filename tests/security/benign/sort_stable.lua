-- expect: ok value=["b2", "d2", "a1", "c1", "e1"]
-- Sorts stably by remembering each item's place.
agent = {}
function agent.resolve(args, config, context)
    local items = {}
    for i, text in ipairs({ "a1", "b2", "c1", "d2", "e1" }) do items[i] = { text = text, place = i } end
    table.sort(items, function(a, b)
        local x, y = a.text:sub(2), b.text:sub(2)
        if x ~= y then return x > y end
        return a.place < b.place
    end)
    for i, item in ipairs(items) do items[i] = item.text end
    return items
end
