-- expect: ok value={"counts": {"a": 3, "b": 1}, "most": "a"}
-- Groups words and finds the most frequent.
agent = {}
function agent.resolve(args, config, context)
    local counts, most = {}, nil
    for word in ("a b a a"):gmatch("%a+") do counts[word] = (counts[word] or 0) + 1 end
    for word, n in pairs(counts) do
        if most == nil or n > counts[most] then most = word end
    end
    return { counts = counts, most = most }
end
