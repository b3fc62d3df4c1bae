-- expect: script_error message~"stack overflow" limits={memory_bytes=67108864}
-- Fails at the end of a very deep stack.
agent = {}
local function descend(n) local x = descend(n + 1) return x end
function agent.resolve(args, config, context)
    return descend(1)
end
