-- Points in time as seconds since 1970 in UTC, with a fraction; RFC 3339; calendar arithmetic; zones.
local x = ...
local native, error, type, math_type, next, rawget = x.native, x.error, x.type, x.math_type, x.next, x.rawget
local find, format, gsub, match, sub, pack, unpack = x.find, x.format, x.gsub, x.match, x.sub, x.pack, x.unpack
local tonumber, os_time, isyieldable, tostring = x.tonumber, x.os_time, x.isyieldable, x.tostring

local FIRST, LAST = -62135596800, 253402300800      -- 0001-01-01 and 10000-01-01, which is the first that is too late

-- Howard Hinnant, https://howardhinnant.github.io/date_algorithms.html: days since 1970 of a date, and back.
local function days_of(year, month, day)
    if month <= 2 then year = year - 1 end
    local era = year // 400
    local of_era = year - era * 400
    local of_year = (153 * (month + (month > 2 and -3 or 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
end
local function date_of(days)
    days = days + 719468
    local era = days // 146097
    local of_era = days - era * 146097
    local year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    local of_year = of_era - (365 * year + year // 4 - year // 100)
    local m = (5 * of_year + 2) // 153
    local month = m < 10 and m + 3 or m - 9
    return year + era * 400 + (month <= 2 and 1 or 0), month, of_year - (153 * m + 2) // 5 + 1
end
local function month_days(year, month)
    local following = month == 12 and days_of(year + 1, 1, 1) or days_of(year, month + 1, 1)
    return following - days_of(year, month, 1)
end

local function check(name, t)
    if not math_type(t) then error(name .. ": a number of seconds is expected, got " .. type(t), 3) end
    if not (t >= FIRST and t < LAST) then error(name .. ": the time is outside of the years 1 to 9999", 3) end
end

local function fixed(zone)
    if zone == nil or zone == "UTC" or zone == "Z" then return 0 end
    local sign, hours, minutes = match(zone, "^([+-])(%d%d):?(%d%d)$")
    if not sign then return nil end
    local seconds = tonumber(hours) * 3600 + tonumber(minutes) * 60
    if tonumber(minutes) > 59 or tonumber(hours) > 23 then return nil end
    return sign == "-" and -seconds or seconds
end
-- How far the zone's clocks are ahead of UTC at a time, in seconds. Called by what the script called.
local function offset_of(name, zone, t)
    if zone ~= nil and type(zone) ~= "string" then error(name .. ": the zone must be a string, got " .. type(zone), 3) end
    local offset = fixed(zone)
    if offset then return offset end
    if #zone > 64 then error(name .. ": there is no zone " .. sub(zone, 1, 64) .. "...", 3) end
    local reply = native(name, "time:offset", pack(">d", t) .. zone, 4)
    return (unpack(">i4", reply))
end

local function split(t, offset)
    local whole = t // 1
    local fraction = t - whole
    local local_seconds = (math_type(whole) == "float" and whole // 1 | 0 or whole) + offset
    local days = local_seconds // 86400
    return days, local_seconds - days * 86400, fraction
end

local time = {}

-- In callbacks, where the worker cannot be asked, to the second; it never goes back.
local last = 0
function time.now()
    local t = os_time()
    if isyieldable() then
        local reply = native("time.now", "clock:now", "")
        t = unpack(">d", reply)
    end
    if t > last then last = t end
    return last
end

function time.parse(text)
    if type(text) ~= "string" then error("time.parse: a string is expected, got " .. type(text), 2) end
    local function broken(why)
        error("time.parse: " .. why .. ": " .. gsub(sub(text, 1, 64), "[%c\x80-\xff]", "?"), 3)
    end
    local year, month, day, rest = match(text, "^(%d%d%d%d)%-(%d%d)%-(%d%d)(.*)$")
    if not year then broken("a date as YYYY-MM-DD is expected, then T, a time and a zone (RFC 3339)") end
    year, month, day = tonumber(year), tonumber(month), tonumber(day)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > month_days(year, month) then broken("there is no such day") end
    local t = days_of(year, month, day) * 86400
    if rest == "" then return t end
    local hour, minute, second, tail = match(rest, "^[Tt ](%d%d):(%d%d):(%d%d)(.*)$")
    if not hour then broken("a time as HH:MM:SS is expected") end
    hour, minute, second = tonumber(hour), tonumber(minute), tonumber(second)
    if hour > 23 or minute > 59 or second > 60 then broken("there is no such time") end
    t = t + hour * 3600 + minute * 60 + second          -- a leap second is the first of the next minute
    local fraction, zone = match(tail, "^%.(%d+)(.*)$")
    zone = zone or tail
    local offset = zone == "z" and 0 or zone ~= "UTC" and zone ~= "" and fixed(zone) or nil
    if not offset then broken("a zone is expected: Z, or an offset such as +02:00") end
    t = t - offset
    if t < FIRST or t >= LAST then broken("it is outside of the years 1 to 9999 in UTC") end
    return fraction and t + tonumber("0." .. sub(fraction, 1, 9)) or t
end

function time.format(t, zone)
    check("time.format", t)
    local offset = offset_of("time.format", zone, t)
    local days, seconds, fraction = split(t, offset)
    local ms = (fraction * 1000 + 0.5) // 1 | 0
    if ms == 1000 then
        ms, seconds = 0, seconds + 1
        if seconds == 86400 then days, seconds = days + 1, 0 end
    end
    local year, month, day = date_of(days)
    if year < 1 or year > 9999 then error("time.format: the time is outside of the years 1 to 9999", 2) end
    local made = format("%04d-%02d-%02dT%02d:%02d:%02d", year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60)
    if ms > 0 then made = made .. format(".%03d", ms) end
    if offset == 0 and (zone == nil or zone == "UTC" or zone == "Z") then return made .. "Z" end
    local minutes = (offset < 0 and -offset or offset) // 60
    return made .. format("%s%02d:%02d", offset < 0 and "-" or "+", minutes // 60, minutes % 60)
end

function time.parts(t, zone)
    check("time.parts", t)
    local offset = offset_of("time.parts", zone, t)
    local days, seconds, fraction = split(t, offset)
    local year, month, day = date_of(days)
    return {
        year = year, month = month, day = day,
        hour = seconds // 3600, minute = seconds // 60 % 60, second = seconds % 60, fraction = fraction,
        weekday = (days + 3) % 7 + 1,                   -- 1970-01-01 was a Thursday; Monday is 1, as in ISO 8601
        yearday = days - days_of(year, 1, 1) + 1,
        offset = offset,
    }
end

local STEPS = { weeks = 604800, days = 86400, hours = 3600, minutes = 60, seconds = 1, months = 1, years = 12 }
local CLOCK = { "hours", "minutes", "seconds" }
function time.add(t, amounts, zone)
    check("time.add", t)
    if type(amounts) ~= "table" then error("time.add: the amounts must be a table, got " .. type(amounts), 2) end
    for name, amount in next, amounts do
        if not STEPS[name] then
            error("time.add: there is no unit " .. (type(name) == "string" and sub(name, 1, 64) or type(name))
                .. "; there are years, months, weeks, days, hours, minutes, seconds", 2)
        end
        if not math_type(amount) or amount ~= amount or amount > 2 ^ 45 or amount < -2 ^ 45 then
            error("time.add: " .. name .. " must be a number that is not too large", 2)
        end
        if (name == "months" or name == "years") and amount % 1 ~= 0 then
            error("time.add: " .. name .. " must be a whole number", 2)
        end
    end
    local function amount(name)
        local value = rawget(amounts, name) or 0
        return math_type(value) == "float" and value % 1 == 0 and value // 1 | 0 or value
    end
    local months = amount("months") + 12 * amount("years")
    local days_more = amount("days") + 7 * amount("weeks")
    local made = t
    if months ~= 0 or days_more ~= 0 then
        -- The calendar's part is counted on the zone's own clock: a day later is the same time of day.
        local offset = offset_of("time.add", zone, t)
        local days, seconds, fraction = split(t, offset)
        if months ~= 0 then
            local year, month, day = date_of(days)
            local at = year * 12 + month - 1 + months
            year, month = at // 12, at % 12 + 1
            if year < 1 or year > 9999 then error("time.add: the time is outside of the years 1 to 9999", 2) end
            local most = month_days(year, month)
            days = days_of(year, month, day < most and day or most)
        end
        local on_clock = days * 86400 + seconds + days_more * 86400
        if not (on_clock > FIRST - 86400 and on_clock < LAST + 86400) then
            error("time.add: the time is outside of the years 1 to 9999", 2)
        end
        local guess = on_clock - offset
        if guess < FIRST then guess = FIRST elseif guess >= LAST then guess = LAST - 1 end
        made = on_clock - offset_of("time.add", zone, guess)
        if fraction ~= 0 then made = made + fraction end
    end
    for i = 1, 3 do made = made + amount(CLOCK[i]) * STEPS[CLOCK[i]] end
    if not (made >= FIRST and made < LAST) then error("time.add: the time is outside of the years 1 to 9999", 2) end
    return made
end

local UNITS = { d = 86400, h = 3600, m = 60, s = 1, w = 604800 }
-- Both ways: seconds of a text such as "1h30m", and the text of seconds.
function time.duration(value)
    if type(value) == "string" then
        local total, at = 0, 1
        local sign = match(value, "^%s*-") and -1 or 1
        local rest = gsub(value, "^%s*[+-]?", "")
        while true do
            local from, to, amount, unit = find(rest, "^%s*(%d+%.?%d*)%s*([dhmsw]+)", at)
            if not from then break end
            local step = unit == "ms" and 0.001 or UNITS[unit]
            if not step then break end
            total, at = total + tonumber(amount) * step, to + 1
        end
        if at == 1 or find(rest, "%S", at) then
            error("time.duration: amounts with units are expected, such as 1h30m (units: w, d, h, m, s, ms)", 2)
        end
        return sign * total
    end
    if not math_type(value) or value ~= value or value > 2 ^ 45 or value < -2 ^ 45 then
        error("time.duration: a text or a number of seconds is expected", 2)
    end
    local sign = value < 0 and "-" or ""
    local ms = ((value < 0 and -value or value) * 1000 + 0.5) // 1 | 0
    local parts = ""
    local seconds = ms // 1000
    ms = ms % 1000
    local d, h, m, s = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
    if d > 0 then parts = parts .. d .. "d" end
    if h > 0 then parts = parts .. h .. "h" end
    if m > 0 then parts = parts .. m .. "m" end
    if s > 0 or ms > 0 or parts == "" then
        parts = parts .. (ms > 0 and gsub(format("%d.%03d", s, ms), "0+$", "") or tostring(s)) .. "s"
    end
    return sign .. parts
end

return time
