-- expect: ok value=true
-- Feeds the text library values that are no text, bytes that are no characters, and places that are none.
agent = {}
function agent.resolve(args, config, context)
    for name, f in pairs(text) do
        for _, v in ipairs({ 1, true, {}, print }) do if pcall(f, v, v) then return name end end
        if pcall(f) then return name end
    end
    local odd = "\xff\x80\xc3\xe2\x82\xf0\x9f\x98"
    for i = -9, 9 do for j = -9, 9 do if #text.sub(odd, i, j) > #odd then return i end end end
    text.upper(odd) text.lower(odd) text.title(odd) text.similarity(odd, odd .. "a") text.tokens(odd) text.wrap(odd, 1)
    return text.sub("abc", math.mininteger, math.maxinteger) == "abc" and not pcall(text.sub, "a", 0/0)
end
