-- Replacements of interpreter functions that do more than scripts may (see allowlist.py).
local x = ...
local error, pcall, select, type, rawget, rawequal = x.error, x.pcall, x.select, x.type, x.rawget, x.rawequal
local raw_tostring, raw_setmetatable, raw_getmetatable = x.tostring, x.setmetatable, x.getmetatable
local raw_format, raw_date, raw_randomseed, random = x.format, x.os_date, x.randomseed, x.random
local find, gsub, collect, table_pack, table_unpack = x.find, x.gsub, x.collect, x.table_pack, x.table_unpack
local own, OUT_OF_MEMORY = x.own, x.OUT_OF_MEMORY

local wrapped = {}

-- Raises the error of a wrapped C function with its name and the script's line, as frames of this file have neither.
-- Used in a tail call, so that level 2 is the script.
local function blame(name, ok, ...)
    if ok then return ... end
    local message = ...
    if rawequal(message, OUT_OF_MEMORY) then error(message, 0) end
    error((gsub(message, "'%?'", "'" .. name .. "'")), 2)
end

wrapped["error"] = function(message, level)
    if level == nil then level = 1 end
    if type(level) == "number" and level > 0 then level = level + 1 end   -- this function is one level, too
    error(own(message), level)
end
wrapped["assert"] = function(...)
    local value, message = ...
    if value then return ... end
    if select("#", ...) == 0 then error("bad argument #1 to 'assert' (value expected)", 2) end
    if select("#", ...) == 1 then message = "assertion failed!" end
    error(own(message), 0)
end

local function tostring(...)
    if select("#", ...) == 0 then error("bad argument #1 to 'tostring' (value expected)", 2) end
    local v = ...
    local t = type(v)
    if t == "string" then return v end
    if t == "number" or t == "boolean" or t == "nil" then return raw_tostring(v) end
    local meta = raw_getmetatable(v)
    if meta and rawget(meta, "__tostring") ~= nil then return raw_tostring(v) end
    local name = meta and rawget(meta, "__name")
    return type(name) == "string" and name or t
end
wrapped["tostring"] = tostring

wrapped["setmetatable"] = function(t, ...)
    local meta = ...
    if type(meta) == "table" and rawget(meta, "__gc") ~= nil then
        error("setmetatable: __gc is not available here", 2)
    end
    return blame("setmetatable", pcall(raw_setmetatable, t, ...))
end
wrapped["getmetatable"] = function(v)
    local meta = raw_getmetatable(v)
    if type(meta) ~= "table" then return nil end
    local protected = rawget(meta, "__metatable")
    if protected ~= nil then return protected end
    return meta
end
wrapped["collectgarbage"] = function(option)
    if option == "count" then return collect("count") end
    return 0
end

wrapped["string.format"] = function(fmt, ...)
    if type(fmt) ~= "string" then return blame("format", pcall(raw_format, fmt, ...)) end
    if find(gsub(fmt, "%%%%", ""), "%%[-+ #0-9.]*p") then
        error("string.format: %p is not available here", 2)
    end
    local n = select("#", ...)
    for i = 1, n do
        local t = type((select(i, ...)))
        if t == "table" or t == "function" or t == "thread" then
            local values = table_pack(...)
            for j = i, n do
                t = type(values[j])
                if t == "table" or t == "function" or t == "thread" then values[j] = tostring(values[j]) end
            end
            return blame("format", pcall(raw_format, fmt, table_unpack(values, 1, n)))
        end
    end
    return blame("format", pcall(raw_format, fmt, ...))
end

local seed_a, seed_b = x.seed_a, x.seed_b
local function seed(...) raw_randomseed(...) end      -- drops its results, of which an address is part
wrapped["math.randomseed"] = function(...)
    if select("#", ...) > 0 then
        return blame("randomseed", pcall(seed, ...))
    else
        raw_randomseed(seed_a, seed_b)
        seed_a, seed_b = random(0), random(0)
    end
end

wrapped["os.date"] = function(fmt, ...)
    if type(fmt) == "string" and #fmt > 256 then error("os.date: the format is longer than 256 bytes", 2) end
    return blame("date", pcall(raw_date, fmt, ...))
end

return wrapped
