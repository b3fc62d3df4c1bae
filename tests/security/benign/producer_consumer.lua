-- expect: ok value=[10, "dead"]
-- Passes values both ways between coroutines.
agent = {}
function agent.resolve(args, config, context)
    local total = coroutine.create(function()
        local sum = 0
        while true do
            local value = coroutine.yield(sum)
            if value == nil then return sum end
            sum = sum + value
        end
    end)
    coroutine.resume(total)
    for i = 1, 4 do coroutine.resume(total, i) end
    local _, sum = coroutine.resume(total)
    return { sum, coroutine.status(total) }
end
