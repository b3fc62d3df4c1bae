-- expect: ok value=[false, "not enough memory"]
-- Fills the memory in __close.
agent = {}
function agent.resolve(args, config, context)
    return { pcall(function()
        local guard <close> = setmetatable({}, { __close = function() return ("x"):rep(100000000) end })
    end) }
end
