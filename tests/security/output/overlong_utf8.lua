-- expect: ok value=["overlong", "surrogate", "beyond"]
-- Returns byte sequences that only look like UTF-8: each is refused.
agent = {}
function agent.resolve(args, config, context)
    local refused = {}
    local cases = { overlong = "\xc0\xaf", surrogate = "\xed\xa0\x80", beyond = "\xf4\x90\x80\x80" }
    for _, name in ipairs({ "overlong", "surrogate", "beyond" }) do
        if not utf8.len(cases[name]) then refused[#refused + 1] = name end
    end
    return refused
end
