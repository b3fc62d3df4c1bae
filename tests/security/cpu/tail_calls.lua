-- expect: cpu_limit
-- Calls itself in tail position, which never fills a stack.
agent = {}
local function ping(n) return agent.pong(n + 1) end
function agent.pong(n) return ping(n + 1) end
function agent.resolve(args, config, context)
    return ping(0)
end
