-- expect: memory_limit
-- Keeps functions that have each a variable of their own.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    while true do
        local n = #t
        t[n + 1] = function() n = n + 1 return n end
    end
end
