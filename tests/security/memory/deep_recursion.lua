-- expect: script_error message~"stack overflow" limits={memory_bytes=67108864}
-- Recurses until Lua's own bound on its stack, where memory suffices for that.
agent = {}
local function deeper(n) return 1 + deeper(n + 1) end
function agent.resolve(args, config, context)
    return deeper(0)
end
