-- expect: ok value={"arguments": [{"name": "service", "required": true}], "description": "Helps", "functions": ["resolve"], "name": "helper", "tools": ["search"]} describe=true
-- Declares itself with a name, a description, arguments and tools.
agent = {
    name = "helper",
    description = "Helps",
    tools = { "search" },
    arguments = { { name = "service", required = true } },
}
function agent.resolve(args, config, context)
    return {}
end
