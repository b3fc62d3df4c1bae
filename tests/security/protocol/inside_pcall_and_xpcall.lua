-- expect: ok value=[true, true, false, "handled"]
-- Calls the host inside pcall and xpcall, and inside the handler of xpcall.
agent = {}
function agent.resolve(args, config, context)
    local a = pcall(context.search, "deploy")
    local b = xpcall(context.search, print, "deploy")
    local c, why = xpcall(error, function()
        return pcall(context.search, "deploy") and "called" or "handled"
    end, "x")
    return { a, b, c, why }
end
