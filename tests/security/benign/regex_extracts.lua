-- expect: ok value=["7f3a", "2024-05-01", 3, "a<b>c"]
-- Takes a log line apart with regular expressions.
agent = {}
function agent.resolve(args, config, context)
    local line = "2024-05-01 ERROR timeout (id=7f3a)"
    local id = regex.match(line, [[id=(\w+)]])
    local day = regex.match(line, [[\d{4}-\d\d-\d\d]])
    return { id, day, #regex.split("a, b;c", "[,;] *"), (regex.gsub("abc", "b", "<%0>")) }
end
