-- expect: ok value=true
-- Makes coroutines directly of host functions and of library functions.
agent = {}
function agent.resolve(args, config, context)
    local search = coroutine.wrap(context.search)
    local found = search("deploy")
    local ok = pcall(coroutine.wrap(context.get), "no-such-document")
    local upper = coroutine.wrap(string.upper)("x")
    local yielder = coroutine.wrap(coroutine.yield)
    return #found > 0 and not ok and upper == "X" and yielder(1) == 1 and yielder(2) == 2
end
