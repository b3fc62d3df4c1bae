-- expect: ok value=["a=1", "b=2", "c=3"]
-- Iterates in order through __pairs.
agent = {}
local function ordered(t)
    return setmetatable(t, { __pairs = function(self)
        local keys = {}
        for key in next, self do keys[#keys + 1] = key end
        table.sort(keys)
        local i = 0
        return function()
            i = i + 1
            if keys[i] then return keys[i], self[keys[i]] end
        end
    end })
end
function agent.resolve(args, config, context)
    local shown = {}
    for key, value in pairs(ordered({ c = 3, a = 1, b = 2 })) do shown[#shown + 1] = key .. "=" .. value end
    return shown
end
