-- expect: memory_limit
-- Nests tables without end.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    while true do t = { t, {} } end
end
