-- expect: ok value=true limits={cpu_s=5}
-- Anchors that multiply, recursion, deep nesting, tags that make objects, wrong types: errors, and all goes on.
agent = {}
function agent.resolve(args, config, context)
    local bomb = { "a: &a [x, x, x, x, x, x, x, x, x]" }
    for i = 2, 9 do
        local before, name = string.char(95 + i), string.char(96 + i)
        bomb[i] = name .. ": &" .. name .. " [" .. ("*" .. before .. ", "):rep(9) .. "]"
    end
    for _, bad in ipairs({
        table.concat(bomb, "\n"), "&a [*a]", "&a {b: *a}", ("["):rep(100000), ("- "):rep(100000), "!!python/name:os.system",
        "a: &a " .. ("x"):rep(100000) .. "\nb: [" .. ("*a, "):rep(1000) .. "]", "\xff", "\0", "%YAML 9.9\n--- a", 5, {}, print,
    }) do
        local ok, problem = pcall(yaml.parse, bad)
        if ok or not problem:find("yaml.parse: ", 1, true) then return tostring(bad):sub(1, 60) .. tostring(problem) end
    end
    return yaml.parse("a: [1, 2]").a[2] == 2
end
