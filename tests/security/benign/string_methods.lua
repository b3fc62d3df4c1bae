-- expect: ok value=["bcd", 3, "c", 99, "aaa", "%d", "  7|7  |007|+7", "2.50", "\"q\""]
-- Uses the string library through methods.
agent = {}
function agent.resolve(args, config, context)
    local s = "abcde"
    return {
        s:sub(2, -2), s:find("c"), s:match("c"), s:byte(3), ("a"):rep(3), ("%%d"):format(),
        ("%3d|%-3d|%03d|%+d"):format(7, 7, 7, 7), ("%.2f"):format(2.5), ("%q"):format("q"),
    }
end
