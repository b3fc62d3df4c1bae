-- Three searches and two whole documents for one prompt: what a thorough agent asks of the engine.

agent = {
    name = "bench-incident",
    description = "Gathers what is known of an incident: runbooks, earlier incidents, decisions",
    tools = { "search", "get" },
    arguments = { { name = "service", description = "the service that fails", required = true } },
}

function agent.resolve(args, config, context)
    local runbooks = context.search(args.service .. " incident runbook", { source = "runbooks", limit = 5 })
    local earlier = context.search(args.service .. " root cause", { source = "postmortems", limit = 5 })
    local decisions = context.search(args.service .. " decision", { source = "adrs", limit = 5 })
    local parts = { "An incident of " .. args.service .. ". What is known:" }
    for _, found in ipairs({ runbooks[1], earlier[1] }) do
        local document = context.get(found.id)
        parts[#parts + 1] = "## " .. (document.title or "Untitled") .. "\n" .. document.body
    end
    for _, hit in ipairs(decisions) do
        parts[#parts + 1] = "- " .. (hit.title or hit.id) .. ": " .. hit.snippet
    end
    return { system = table.concat(parts, "\n\n") }
end

return agent
