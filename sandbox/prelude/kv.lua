-- `kv`: the key-value store. The host answers with lists, which become the results.
local x = ...
local host_call, error, next, type = x.host_call, x.error, x.next, x.type
local isyieldable, NOT_HERE = x.isyieldable, x.NOT_HERE

local function arguments(name, key, options)
    if not isyieldable() then error(name .. NOT_HERE, 3) end
    local found = {}
    if options ~= nil then
        if type(options) ~= "table" then error(name .. ": the options must be a table, got " .. type(options), 3) end
        for option, value in next, options do found[option] = value end
    end
    if type(key) == "table" then
        error(name .. ": a string is expected, got table; call it with a dot, " .. name .. "(...), not with a colon", 3)
    end
    return found
end

return {
    get = function(key)
        arguments("kv.get", key)
        local found = host_call("kv.get", { key = key })
        if found == nil then return nil end
        return found[1], found[2]
    end,
    set = function(key, value, options)
        local given = arguments("kv.set", key, options)
        given.key, given.value = key, value
        local changed = host_call("kv.set", given)
        if changed[1] then return changed[2] end
        return nil, changed[2]
    end,
    delete = function(key, options)
        local given = arguments("kv.delete", key, options)
        given.key = key
        local changed = host_call("kv.delete", given)
        if changed[1] then return true end
        return false, changed[2]
    end,
    list = function(prefix, options)
        local given = arguments("kv.list", prefix, options)
        given.prefix = prefix
        local found = host_call("kv.list", given)
        return found[1], found[2]
    end,
    incr = function(key, by)
        arguments("kv.incr", key)
        local found = host_call("kv.incr", { key = key, by = by })
        return found[1], found[2]
    end,
}
