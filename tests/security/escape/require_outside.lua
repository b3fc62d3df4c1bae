-- expect: ok value=true files={"inside.lua": "return 'inside'"}
-- Requires files outside of its package, by every way that a name could lead there.
agent = {}
local named = { "./inside" }
function agent.resolve(args, config, context)
    if require("./inside") ~= "inside" then return "no inside" end
    for _, name in ipairs({
        "../x", "/etc/passwd", "./../x", "./lib/../../x", "./inside/../inside", ".//inside", "./inside\0", "./inside\0.lua",
        ".\\inside", "./inside/", "./", ".", "", "..", "file:./inside", "./inside.lua.lua", "./INSIDE", "lib.inside",
        "./\xff", "./inside\n", " ./inside", "./inside ", "[engine]", "=./inside", "./[engine]", "library:code",
    }) do
        local ok, problem = pcall(require, name)
        if ok then return name end
        if #problem > 4096 then return "a long problem" end
    end
    for _, value in ipairs({ 5, true, {}, print, setmetatable({}, { __tostring = function() return "./inside" end }) }) do
        if pcall(require, value) then return "a " .. type(value) end
    end
    return not pcall(require)
end
