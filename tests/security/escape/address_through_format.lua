-- expect: ok value=["table function", "thread|    table", "%p 10%"]
-- Reads addresses with %s in string.format, also with widths and beside a doubled percent sign.
agent = {}
function agent.resolve(args, config, context)
    return {
        string.format("%s %s", {}, print),
        ("%s|%9s"):format(coroutine.create(print), {}),
        string.format("%%p %d%%", 10),
    }
end
