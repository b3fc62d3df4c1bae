-- YAML, read by the worker (natives/yaml.py).
local x = ...
local native, error, type, rawget, pack, decode = x.native, x.error, x.type, x.rawget, x.pack, x.decode
local isyieldable, NOT_HERE, max_depth = x.isyieldable, x.NOT_HERE, x.max_depth

return {
    parse = function(text, options)
        if not isyieldable() then error("yaml.parse" .. NOT_HERE, 2) end
        if type(text) ~= "string" then error("yaml.parse: a string is expected, got " .. type(text), 2) end
        if options ~= nil and type(options) ~= "table" then
            error("yaml.parse: the options must be a table, got " .. type(options), 2)
        end
        x.check_options("yaml.parse", options, ", all, ", 2)
        local all = options and rawget(options, "all") and 1 or 0
        local reply = native("yaml.parse", "yaml:parse", pack(">I2B", max_depth, all) .. text)
        local documents = decode(reply, 1)
        if all == 1 then return documents end
        return documents[1]
    end,
}
