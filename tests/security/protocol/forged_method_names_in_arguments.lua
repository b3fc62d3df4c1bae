-- expect: ok value=true
-- Puts names, tags and other calls into the arguments of a call.
agent = {}
function agent.resolve(args, config, context)
    local ok, found = pcall(context.search, {
        query = "deploy", name = "context.get", tag = "done", [1] = nil, method = "secrets.all", __index = "x",
    })
    return ok == false or #found > 0
end
