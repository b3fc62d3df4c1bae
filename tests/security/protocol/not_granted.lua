-- expect: ok value=[false, false, true] grants=["context.sources"] calls=3
-- Makes calls that it was not granted and one that it was.
agent = {}
function agent.resolve(args, config, context)
    local a, why = pcall(context.search, "deploy")
    if not tostring(why):find("not granted") then return tostring(why) end
    return { a, (pcall(context.get, "x")), (pcall(context.sources)) }
end
