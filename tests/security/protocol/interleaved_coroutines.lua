-- expect: ok value=["a1", "b1", "a2", "b2", "a3", "b3"] calls=6
-- Lets two coroutines take turns, each calling the host between its steps.
agent = {}
function agent.resolve(args, config, context)
    local order = {}
    local function worker(name)
        return coroutine.create(function()
            for i = 1, 3 do
                local found = context.search("deploy")
                order[#order + 1] = name .. i
                coroutine.yield(#found)
            end
        end)
    end
    local a, b = worker("a"), worker("b")
    for _ = 1, 3 do
        coroutine.resume(a)
        coroutine.resume(b)
    end
    return order
end
