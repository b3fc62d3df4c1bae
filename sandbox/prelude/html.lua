-- HTML, read by the worker (natives/html.py).
local x = ...
local native, error, type, pack, decode = x.native, x.error, x.type, x.pack, x.decode
local isyieldable, NOT_HERE = x.isyieldable, x.NOT_HERE

local function check(name, source)
    if not isyieldable() then error(name .. NOT_HERE, 3) end
    if type(source) ~= "string" then error(name .. ": the source must be a string, got " .. type(source), 3) end
end

return {
    text = function(source)
        check("html.text", source)
        local made = native("html.text", "html:text", source)
        return made
    end,
    select = function(source, selector)
        check("html.select", source)
        if type(selector) ~= "string" then
            error("html.select: the selector must be a string, got " .. type(selector), 2)
        end
        local reply = native("html.select", "html:select", pack(">s4", selector) .. source)
        local elements = decode(reply, 1)
        return elements
    end,
}
