-- expect: ok value=false
-- Fails in the message handler of xpcall, again and again.
agent = {}
function agent.resolve(args, config, context)
    local function handler() error("in the handler") end
    local ok = xpcall(error, handler, "first")
    return ok
end
