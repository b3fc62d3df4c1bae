-- gzip and zlib, by the worker (natives/gzip.py).
local x = ...
local native, error, type, math_type, rawget, pack = x.native, x.error, x.type, x.math_type, x.rawget, x.pack
local isyieldable, NOT_HERE = x.isyieldable, x.NOT_HERE

local DEFAULT, MOST = 16 << 20, 64 << 20        -- bytes that a decompression may make

return {
    compress = function(bytes)
        if not isyieldable() then error("gzip.compress" .. NOT_HERE, 2) end
        if type(bytes) ~= "string" then error("gzip.compress: a string is expected, got " .. type(bytes), 2) end
        local made = native("gzip.compress", "gzip:compress", bytes)
        return made
    end,
    decompress = function(bytes, options)
        if not isyieldable() then error("gzip.decompress" .. NOT_HERE, 2) end
        if type(bytes) ~= "string" then error("gzip.decompress: a string is expected, got " .. type(bytes), 2) end
        if options ~= nil and type(options) ~= "table" then
            error("gzip.decompress: the options must be a table, got " .. type(options), 2)
        end
        x.check_options("gzip.decompress", options, ", max_bytes, ", 2)
        local most = options and rawget(options, "max_bytes") or DEFAULT
        if math_type(most) ~= "integer" or most < 0 or most > MOST then
            error("gzip.decompress: max_bytes must be a whole number from 0 to " .. MOST, 2)
        end
        local made = native("gzip.decompress", "gzip:decompress", pack(">I8", most) .. bytes)
        return made
    end,
}
