-- expect: ok args={"service": "billing"} config={"search_limit": 2} calls=1 value={"messages": [{"content": "Help with billing.\n1. Deploying (0.50)\n2. Untitled (0.50)", "role": "system"}], "tools": ["search", "get"]}
-- Searches, formats the hits with a default for a missing title, and returns a prompt.
agent = { description = "Helps with incidents", tools = { "search", "get" } }
function agent.resolve(args, config, context)
    local found = context.search("deploy", { limit = config.search_limit or 5 })
    local lines = { ("Help with %s."):format(args.service) }
    for i, hit in ipairs(found) do
        lines[#lines + 1] = ("%d. %s (%.2f)"):format(i, hit.title or "Untitled", hit.score)
    end
    return { messages = { { role = "system", content = table.concat(lines, "\n") } }, tools = agent.tools }
end
