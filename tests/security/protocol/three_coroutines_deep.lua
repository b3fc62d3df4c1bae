-- expect: ok value=[3, "Deploying"] calls=2
-- Calls the host three coroutines deep, twice.
agent = {}
function agent.resolve(args, config, context)
    local function level(n)
        return coroutine.wrap(function()
            if n > 1 then return level(n - 1) end
            local found = context.search("deploy")
            return { 3, context.get(found[1].id).title }
        end)()
    end
    return level(3)
end
