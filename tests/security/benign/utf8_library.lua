-- expect: ok value=[4, ["G", "r", "ö", "ß"], 246, "ß€𝄞", 3, [71, 114, 246, 223], true]
-- Counts, walks, makes and finds characters.
agent = {}
function agent.resolve(args, config, context)
    local text, letters, codes = "Größ", {}, {}
    for _, code in utf8.codes(text) do codes[#codes + 1] = code end
    for letter in text:gmatch(utf8.charpattern) do letters[#letters + 1] = letter end
    return {
        utf8.len(text), letters, utf8.codepoint(text, utf8.offset(text, 3)), utf8.char(223, 8364, 119070),
        utf8.offset(text, 3), codes, utf8.len("\xff") == nil,
    }
end
