-- expect: ok value=true
-- Adds and removes keys while it iterates, and gives next keys that are not there.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 100 do t["k" .. i] = i end
    pcall(function()
        for key in pairs(t) do
            t[key] = nil
            t[key .. "x"] = 1
            if #key > 12 then return end
        end
    end)
    return not pcall(next, t, "never a key") and not pcall(next, t, {})
end
