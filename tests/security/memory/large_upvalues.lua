-- expect: memory_limit
-- Keeps large texts alive through the variables of functions only.
agent = {}
function agent.resolve(args, config, context)
    local keep = function() end
    for i = 1, math.huge do
        local text, before = ("x"):rep(100000) .. i, keep
        keep = function() return text, before end
    end
end
