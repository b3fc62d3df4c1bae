-- expect: ok value=true
-- Asks for a search that this engine is not configured for.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(context.search, "deploy", { mode = "semantic" })
    return not ok and why:find("embedder", 1, true) ~= nil
end
