-- expect: ok value=true files={"a.lua": "local up = {} for name in next, _G do up[#up + 1] = name end return { up = up, env = _ENV, args = select('#', ...) }"}
-- Looks for more than a script has in the globals and arguments of a required file.
agent = {}
function agent.resolve(args, config, context)
    local found = require("./a")
    if found.env ~= _ENV or found.args ~= 0 then return "another environment" end
    for _, name in ipairs(found.up) do
        if rawget(_G, name) == nil then return name end
    end
    return package == nil and load == nil
end
