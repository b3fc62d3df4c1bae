-- expect: memory_limit limits={memory_bytes=4194304}
-- Recurses where the memory ends before Lua's own bound on its stack.
agent = {}
local function deeper(n, text) return text .. deeper(n + 1, text) end
function agent.resolve(args, config, context)
    return deeper(0, "x")
end
