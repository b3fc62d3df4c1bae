-- Regular expressions (RE2): the worker finds the places (natives/regex.py), this makes of them what Lua's own
-- functions of these names return.
local x = ...
local native, error, type, math_type, tostring = x.native, x.error, x.type, x.math_type, x.tostring
local pack, unpack, rep, sub, find, gsub = x.pack, x.unpack, x.rep, x.sub, x.find, x.gsub
local concat, table_unpack, byte = x.concat, x.table_unpack, x.byte
local isyieldable, NOT_HERE, ARRAYS = x.isyieldable, x.NOT_HERE, x.ARRAYS

-- Matches fetched at once: the first few soon, as a loop may be left early; then more, as each fetch copies the text:
-- at least one for every 256 bytes of it, so that no text is copied more than some 300 times.
local FIRST, MOST, SHARE = 16, 4096, 256

-- Bytes of a text and of its replacement for which the worker makes the answer: 4 MiB at most.
local MOST_TEXT, MOST_WITH = 64 * 1024, 64

local function check(name, text, pattern)
    if not isyieldable() then error(name .. NOT_HERE, 3) end
    if type(text) ~= "string" then error(name .. ": the text must be a string, got " .. type(text), 3) end
    if type(pattern) ~= "string" then error(name .. ": the pattern must be a string, got " .. type(pattern), 3) end
end
-- The place where to begin, from 0; nil beyond the end. As in Lua: from 1, negative ones count from the end.
local function place(name, text, init)
    if init == nil then return 0 end
    if math_type(init) ~= "integer" then error(name .. ": init must be a whole number, got " .. type(init), 4) end
    local at = init < 0 and #text + init + 1 or init
    if at < 1 then return 0 end
    if at > #text + 1 then return nil end
    return at - 1
end
local function check_limit(name, limit)
    if limit ~= nil and (math_type(limit) ~= "integer" or limit < 0) then
        error(name .. ": the limit must be a whole number of 0 or more, got "
            .. (math_type(limit) and tostring(limit) or type(limit)), 3)
    end
end

-- One match: its captures, as string.match returns them. A group that took no part is nil.
local function captures(text, groups, places)
    if groups == 0 then return sub(text, places[1] + 1, places[2]) end
    local found = {}
    for i = 1, groups do
        local from = places[2 * i + 1]
        if from >= 0 then found[i] = sub(text, from + 1, places[2 * i + 2]) end
    end
    return table_unpack(found, 1, groups)
end
local function first(name, text, pattern, init)
    local at = place(name, text, init)
    if not at then return nil end
    local reply = native(name, "regex:matches", pack(">I4i4I4s4", at, -1, 1, pattern) .. text, 4)
    if #reply == 8 then return nil end
    local groups = unpack("=i4", reply)
    return groups, { unpack("=" .. rep("i4", 2 * groups + 2), reply, 9) }
end

-- An iterator over the places of all matches: list of begin and end of each group, number of groups.
local function all(name, text, pattern)
    local reply, at, form, groups, go_on
    local next_at, last, most = 0, -1, FIRST
    local bound = #text // SHARE > MOST and #text // SHARE or MOST
    return function()
        if not reply or at > #reply then
            if reply and go_on < 0 then return nil end
            reply = native(name, "regex:matches", pack(">I4i4I4s4", next_at, last, most, pattern) .. text, 4)
            groups, go_on = unpack("=i4i4", reply)
            if #reply == 8 then
                go_on = -1
                return nil
            end
            at, next_at, form = 9, go_on, form or "=" .. rep("i4", 2 * groups + 2)
            most = most * 4 < bound and most * 4 or bound
        end
        local places = { unpack(form, reply, at) }
        at, last = at + 8 * (groups + 1), places[2]
        return places, groups
    end
end

-- The text that stands for a match: %0 to %9 and %% in it, as in string.gsub.
local function expanded(name, with, text, groups, places)
    return (gsub(with, "%%(.?)", function(c)
        if c == "%" then return "%" end
        local i = find(c, "%d") and byte(c) - 48
        if not i then error(name .. ": % in the replacement must be followed by a digit or by %", 5) end
        if i == 1 and groups == 0 then i = 0 end
        if i > groups then error(name .. ": the pattern has no group " .. i .. " for %" .. i, 5) end
        local from = places[2 * i + 1]
        return from < 0 and "" or sub(text, from + 1, places[2 * i + 2])
    end))
end

local regex = {}

function regex.find(text, pattern, init)
    check("regex.find", text, pattern)
    local groups, places = first("regex.find", text, pattern, init)
    if not groups then return nil end
    if groups == 0 then return places[1] + 1, places[2] end
    return places[1] + 1, places[2], captures(text, groups, places)
end

function regex.match(text, pattern, init)
    check("regex.match", text, pattern)
    local groups, places = first("regex.match", text, pattern, init)
    if not groups then return nil end
    return captures(text, groups, places)
end

function regex.gmatch(text, pattern)
    check("regex.gmatch", text, pattern)
    local each = all("regex.gmatch", text, pattern)
    return function()
        local places, groups = each()
        if not places then return nil end
        return captures(text, groups, places)
    end
end

function regex.gsub(text, pattern, with, limit)
    check("regex.gsub", text, pattern)
    check_limit("regex.gsub", limit)
    local kind = type(with)
    if kind == "number" then
        with, kind = tostring(with), "string"
    end
    if kind ~= "string" and kind ~= "table" and kind ~= "function" then
        error("regex.gsub: the replacement must be a string, a table or a function, got " .. kind, 2)
    end
    local plain = kind == "string" and not find(with, "%", 1, true)
    -- In one call where the answer cannot be large: a match made into Lua values costs ten times one that is not.
    if plain and limit ~= 0 and #text <= MOST_TEXT and #with <= MOST_WITH then
        local most = limit and limit < 0xffffffff and limit or 0xffffffff
        local reply = native("regex.gsub", "regex:replace", pack(">I4I4I4", most, #pattern, #with) .. pattern .. with .. text)
        local count = unpack(">I4", reply)
        if count == 0 then return text, 0 end
        return sub(reply, 5), count
    end
    local parts, done, n = {}, 0, 0
    local each = all("regex.gsub", text, pattern)
    while n ~= limit do
        local places, groups = each()
        if not places then break end
        n = n + 1
        local whole, value = sub(text, places[1] + 1, places[2]), nil
        if plain then
            value = with
        elseif kind == "string" then
            value = expanded("regex.gsub", with, text, groups, places)
        elseif kind == "table" then
            value = with[(captures(text, groups, places))]
        else
            value = with(captures(text, groups, places))
        end
        if not value then
            value = whole
        elseif type(value) ~= "string" and type(value) ~= "number" then
            error("regex.gsub: the replacement is a " .. type(value) .. "; it must be a string", 2)
        end
        parts[#parts + 1] = sub(text, done + 1, places[1])
        parts[#parts + 1] = value
        done = places[2]
    end
    if n == 0 then return text, 0 end
    parts[#parts + 1] = sub(text, done + 1)
    return concat(parts), n
end

function regex.split(text, pattern, limit)
    check("regex.split", text, pattern)
    check_limit("regex.split", limit)
    local parts, done = {}, 0
    ARRAYS[parts] = true
    local each = all("regex.split", text, pattern)
    while not limit or #parts + 1 < limit do
        local places = each()
        if not places then break end
        -- An empty match splits between characters, and neither before the first nor behind the last.
        if places[2] > places[1] or (places[1] > 0 and places[2] < #text) then
            parts[#parts + 1] = sub(text, done + 1, places[1])
            done = places[2]
        end
    end
    parts[#parts + 1] = sub(text, done + 1)
    return parts
end

return regex
