-- expect: ok value=true
-- Feeds the CSV library values of every type, quotes without end, and separators that are patterns.
agent = {}
function agent.resolve(args, config, context)
    for _, f in pairs(csv) do
        for _, v in ipairs({ 1, true, print }) do if pcall(f, v) then return false end end
        if pcall(f) or pcall(f, "a", "b") then return false end
    end
    for _, c in ipairs({ "%", ".", "^", "]", "-", "$" }) do
        if csv.parse("a" .. c .. "b", { separator = c })[1][2] ~= "b" then return c end
        if csv.encode({ { "a" .. c, "b" } }, { separator = c }) ~= '"a' .. c .. '"' .. c .. "b\r\n" then return c end
    end
    local cyclic = {}
    cyclic[1] = cyclic
    return not pcall(csv.encode, cyclic) and not pcall(csv.parse, '"' .. ("a"):rep(1000)) and not pcall(csv.encode, { { [5.5] = 1 } })
end
