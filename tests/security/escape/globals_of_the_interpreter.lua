-- expect: ok value=true
-- Compares _G and _ENV and looks for a name that only the interpreter's own globals would hold.
agent = {}
function agent.resolve(args, config, context)
    if _G ~= _ENV or _G._G ~= _G or getmetatable(_G) ~= nil then return false end
    for _, name in ipairs({ "io", "debug", "package", "python", "load", "dofile", "loadfile", "warn" }) do
        if rawget(_G, name) ~= nil then return name end
    end
    return true
end
