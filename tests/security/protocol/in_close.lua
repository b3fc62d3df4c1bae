-- expect: ok value=true calls=2
-- Calls the host in __close, on the way out of a block and of an error.
agent = {}
function agent.resolve(args, config, context)
    local closed = 0
    local function guard()
        return setmetatable({}, { __close = function() closed = closed + #context.sources() end })
    end
    do local a <close> = guard() end
    pcall(function()
        local b <close> = guard()
        error("leave")
    end)
    return closed == 2
end
