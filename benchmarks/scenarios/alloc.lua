-- Many small tables that are alive at the same time.

agent = { name = "bench-alloc", description = "Allocates" }

function agent.resolve(args, config)
    local kept = {}
    for i = 1, config.tables do
        kept[i] = { i, tostring(i) }
    end
    return { system = "kept " .. #kept }
end

return agent
