-- Hashes, computed by the worker (natives/hashes.py).
local x = ...
local native, error, type = x.native, x.error, x.type
local isyieldable, NOT_HERE = x.isyieldable, x.NOT_HERE

local hash = {}
local function define(name)
    local shown = "hash." .. name
    hash[name] = function(bytes)
        if not isyieldable() then error(shown .. NOT_HERE, 2) end
        if type(bytes) ~= "string" then error(shown .. ": a string is expected, got " .. type(bytes), 2) end
        local digest = native(shown, "hash:" .. name, bytes)
        return digest
    end
end
define("md5")
define("sha1")
define("sha512")
define("blake2")
return hash
