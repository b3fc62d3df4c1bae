-- Titles of the documents that answer a question.

tool = {
    name = "bench-tool",
    description = "Finds the titles of documents",
    parameters = {
        { name = "query", type = "string", description = "what to look for", required = true },
        { name = "limit", type = "integer", description = "how many titles", default = 3 },
    },
}

function tool.execute(params, context)
    local titles = {}
    for _, hit in ipairs(context.search(params.query, { limit = params.limit })) do
        titles[#titles + 1] = hit.title or hit.id
    end
    return { titles = json.array(titles) }
end

return tool
