-- expect: ok|memory_limit
-- Fills the memory to the brim, then has the host push an answer into the full state.
agent = {}
local keep = {}
local function fill()
    local size = 1 << 20
    while size > 16 do
        if not pcall(function() keep[#keep + 1] = ("x"):rep(size) .. #keep end) then size = size // 2 end
    end
end
function agent.resolve(args, config, context)
    fill()
    pcall(context.search, "deploy")
    pcall(context.sources)
    keep = nil
    return true
end
