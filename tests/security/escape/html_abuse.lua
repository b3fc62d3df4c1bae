-- expect: ok value=true limits={cpu_s=5}
-- HTML nested 100,000 deep, selectors that are none, values that are no text, bytes of every kind.
agent = {}
function agent.resolve(args, config, context)
    for _, bad in ipairs({ ("<div>"):rep(100000), ("<b>"):rep(5000), 5, {}, print }) do
        if pcall(html.text, bad) or pcall(html.select, bad, "div") then return tostring(bad):sub(1, 30) end
    end
    for _, bad in ipairs({ "p[", ":has(", "", ("p "):rep(100000), "\0", 5, {}, print, "p::" }) do
        if pcall(html.select, "<p>", bad) and bad ~= "\0" and bad ~= "p::" then return tostring(bad):sub(1, 30) end
    end
    local bytes = {}
    for i = 0, 255 do bytes[#bytes + 1] = string.char(i) .. "<" .. string.char(i) end
    html.text(table.concat(bytes))
    return #html.select("<p>a<p>b", "p") == 2
end
