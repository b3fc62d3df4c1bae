-- expect: ok value=true
-- Feeds json.decode broken, hostile and non-text input.
agent = {}
function agent.resolve(args, config, context)
    for _, text in ipairs({
        "", "{", "[", "[1,]", "{\"a\"}", "{\"a\":}", "nul", "+1", "01", "1.", ".5", "\"\\x\"", "\"\\u12\"", "[1] 2", "\"\n\"",
        "\xff", "\"\xed\xa0\x80\"", "NaN", "Infinity", "'a'", "{a:1}", "[1 2]", "\0", "\"a", "-", "1e",
    }) do
        if pcall(json.decode, text) then return text end
    end
    return not pcall(json.decode) and not pcall(json.decode, {}) and not pcall(json.decode, 1)
end
