-- expect: ok value=["carol:9", "alice:7", "bob:7", "dave:1"]
-- Sorts records by score downwards, then by name.
agent = {}
function agent.resolve(args, config, context)
    local people = {
        { name = "bob", score = 7 }, { name = "dave", score = 1 }, { name = "alice", score = 7 }, { name = "carol", score = 9 },
    }
    table.sort(people, function(a, b)
        if a.score ~= b.score then return a.score > b.score end
        return a.name < b.name
    end)
    local shown = {}
    for i, person in ipairs(people) do shown[i] = person.name .. ":" .. person.score end
    return shown
end
