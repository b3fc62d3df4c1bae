-- expect: ok value=true
-- A pattern of 1 MB, one with a count of millions, one nested 100,000 deep, one that is not UTF-8: errors, and all goes on.
agent = {}
function agent.resolve(args, config, context)
    for _, pattern in ipairs({
        ("a"):rep(1000000), "a{2000000}", "((a{999}){999}){999}", ("("):rep(30000) .. (")"):rep(30000), "\xff", "(", "[",
        ("(a)"):rep(100), "(?P<", "\\", "a**", "(?=a)", "\\1", "[[:foo:]]", "\\p{Foo}",
    }) do
        local ok, problem = pcall(regex.find, "aaa", pattern)
        if ok or not problem:find("regex.find: the pattern", 1, true) then return pattern:sub(1, 20) .. tostring(problem) end
    end
    return regex.find("aaa", "a+") == 1
end
