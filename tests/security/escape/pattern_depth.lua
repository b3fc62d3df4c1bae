-- expect: ok value=true
-- Nests the matcher's own recursion deeper than its C stack allows.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(string.match, ("x"):rep(300000), ("x?"):rep(250000) .. "$")
    local again, reason = pcall(string.find, ("a"):rep(100000), (".-"):rep(100000) .. "b")
    return not ok and why:find("too complex") ~= nil and not again and reason:find("too complex") ~= nil
end
