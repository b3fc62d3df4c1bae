-- expect: ok value=true calls=1
-- Calls the host from a hundred coroutines deep.
agent = {}
function agent.resolve(args, config, context)
    local function level(n)
        if n == 0 then return #context.search("deploy") > 0 end
        return coroutine.wrap(level)(n - 1)
    end
    return level(100)
end
