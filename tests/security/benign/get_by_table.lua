-- expect: ok value=["Deploying", "Deploying", "text/markdown", 1]
-- Fetches a document by its id in both spellings and reads its parts.
agent = {}
function agent.resolve(args, config, context)
    local id = context.search("platform")[1].id
    local document = context.get({ id = id })
    return { context.get(id).title, document.title, document.content_type, #document.chunks }
end
