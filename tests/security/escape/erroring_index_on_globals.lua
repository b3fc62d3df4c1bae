-- expect: script_error message~"trapped"
-- Makes every unknown global raise; known to abort hosts that look up globals outside a protected call.
agent = {}
setmetatable(_G, { __index = function(_, name) error("trapped " .. name, 0) end })
function agent.resolve(args, config, context)
    return debug
end
