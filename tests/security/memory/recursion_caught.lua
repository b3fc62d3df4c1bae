-- expect: ok value=true limits={memory_bytes=67108864}
-- Catches a stack overflow and goes on.
agent = {}
local function deeper(n) return 1 + deeper(n + 1) end
function agent.resolve(args, config, context)
    for _ = 1, 2 do
        local ok, why = pcall(deeper, 0)
        if ok or not why:find("stack overflow") then return why end
    end
    return true
end
