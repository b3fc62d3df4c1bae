tool = {
    description = "Takes a parameter that clients repeat in a header",
    parameters = {
        type = "object",
        properties = { region = { type = "string", ["x-mcp-header"] = "Region" } },
    },
}

function tool.execute(params)
    return { region = params.region }
end
