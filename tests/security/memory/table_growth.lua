-- expect: memory_limit
-- Appends to a list for ever.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    while true do t[#t + 1] = #t end
end
