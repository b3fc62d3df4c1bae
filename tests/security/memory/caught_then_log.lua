-- expect: ok|memory_limit|script_error
-- Fills the memory to the brim, then logs, reports progress and returns.
agent = {}
local keep = {}
function agent.resolve(args, config, context)
    local size = 1 << 20
    while size > 16 do
        if not pcall(function() keep[#keep + 1] = ("x"):rep(size) .. #keep end) then size = size // 2 end
    end
    log.info("a line")
    context.progress(0.5, "half")
    return "done"
end
