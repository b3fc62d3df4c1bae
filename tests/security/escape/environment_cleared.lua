-- expect: ok value="still here"
-- Empties its own environment: the driver must not depend on what the script can delete.
local agent = {}
local pairs, all = pairs, _G
function agent.resolve(args, config, context)
    for name in pairs(all) do all[name] = nil end
    return "still here"
end
return agent
