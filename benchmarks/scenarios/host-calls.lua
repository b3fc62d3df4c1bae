-- As many host calls as `calls` says. A blank query is answered with an empty list, without a search.

agent = { name = "bench-host-calls", description = "Makes many host calls" }

function agent.resolve(args, config, context)
    local found = 0
    for _ = 1, config.calls do
        found = found + #context.search(" ")
    end
    return { system = "found " .. found }
end

return agent
