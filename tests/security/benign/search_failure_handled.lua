-- expect: ok value="nothing found: document not found"
-- Handles a refused host call and answers all the same.
agent = {}
function agent.resolve(args, config, context)
    local ok, document = pcall(context.get, "00000000-0000-4000-8000-999999999999")
    if ok then return document.title end
    return "nothing found: " .. tostring(document):match("document not found")
end
