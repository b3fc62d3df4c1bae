-- expect: cpu_limit
-- Never returns from __close, which runs while an error is on its way.
agent = {}
function agent.resolve(args, config, context)
    pcall(function()
        local guard <close> = setmetatable({}, { __close = function() while true do end end })
        error("leave")
    end)
end
