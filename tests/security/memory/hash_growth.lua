-- expect: memory_limit
-- Adds keys to a table for ever.
agent = {}
function agent.resolve(args, config, context)
    local t, n = {}, 0
    while true do
        n = n + 1
        t["key " .. n] = n
    end
end
