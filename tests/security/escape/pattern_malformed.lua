-- expect: ok value=true
-- Gives the matcher malformed patterns and captures that do not exist.
agent = {}
function agent.resolve(args, config, context)
    for _, pattern in ipairs({ "%", "[", "[^", "[a-", "[%", "(", "%b", "%bx", "%f", "%1", ("("):rep(40) }) do
        if pcall(string.find, "abc", pattern) then return pattern end
    end
    return not pcall(string.gsub, "abc", "b", "%9") and not pcall(string.gsub, "abc", "b", "%x")
end
