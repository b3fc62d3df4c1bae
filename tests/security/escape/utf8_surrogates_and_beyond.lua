-- expect: ok value={"beyond": true, "lax": 55296, "len": false, "surrogate": false}
-- Makes and reads code points that are no characters: surrogates and values above U+10FFFF.
agent = {}
function agent.resolve(args, config, context)
    local surrogate = "\xed\xa0\x80"
    return {
        surrogate = (pcall(utf8.codepoint, surrogate)),
        lax = utf8.codepoint(surrogate, 1, 1, true),
        len = utf8.len(surrogate) ~= nil,
        beyond = #utf8.char(0x7fffffff) == 6 and not pcall(utf8.char, 0x80000000) and not pcall(utf8.char, -1),
    }
end
