-- Text that is not UTF-8, most often a string that `string.sub` cut inside a character: each broken part becomes U+FFFD,
-- as in WHATWG's decoder and Python's `errors="replace"`. A run loads this when it first sends such text.
local x = ...
local byte, char, concat, find, match, pack, sub = x.byte, x.char, x.concat, x.find, x.match, x.pack, x.sub
local utf8_len, next, type, encode, traceback = x.utf8_len, x.next, x.type, x.encode, x.traceback

local BROKEN = "\u{FFFD}"
-- Host calls take bytes in these arguments; all others take text.
local BINARY = {
    ["http.post"] = "body", ["http.put"] = "body", ["http.patch"] = "body",
    ["fs.read"] = "path", ["fs.list"] = "path",
}
-- The most warnings to log; the broken parts of all others are still counted.
local MAX_WARNINGS = 8
local PARTS = 4096      -- joined at once, so that a text of broken bytes alone needs no table as large as itself

local mend = { count = 0 }
local warned, said = {}, 0

-- How many bytes of the broken sequence at `at` are one U+FFFD: those that could begin a character (Unicode, table 3-7).
local function broken_bytes(s, at)
    local first, second, third = byte(s, at, at + 2)
    if first < 0xe0 or first > 0xf4 or not second then return 1 end
    local low = first == 0xe0 and 0xa0 or first == 0xf0 and 0x90 or 0x80
    local high = first == 0xed and 0x9f or first == 0xf4 and 0x8f or 0xbf
    if second < low or second > high then return 1 end
    if first >= 0xf0 and third and third >= 0x80 and third <= 0xbf then return 3 end
    return 2
end

-- mended(s) -> text, number of replaced parts.
local function mended(s)
    local whole, parts, n, at, replaced = {}, {}, 0, 1, 0
    while true do
        local length, stop = utf8_len(s, at)
        if length then break end
        n, replaced = n + 1, replaced + 1
        parts[n] = sub(s, at, stop - 1) .. BROKEN
        at = stop + broken_bytes(s, stop)
        if n == PARTS then
            whole[#whole + 1] = concat(parts)
            parts, n = {}, 0
        end
    end
    parts[n + 1] = sub(s, at)
    whole[#whole + 1] = concat(parts)
    return concat(whole), replaced
end

-- The line of the script that runs now.
local function line() return x.need("failure").line(traceback("", 1)) end

local function counted(replaced)
    if replaced == 1 then return "one broken part became U+FFFD" end
    return replaced .. " broken parts became U+FFFD"
end
local function warn(where, replaced)
    if said == MAX_WARNINGS or warned[where] then return end
    warned[where], said = true, said + 1
    x.need("log").plain("warn", where .. " is not UTF-8: " .. counted(replaced)
        .. " (string.sub counts bytes; text.sub counts characters)")
end

function mend.text(s)
    local text, replaced = mended(s)
    mend.count = mend.count + replaced
    return text, replaced
end

-- encoded(value, where, reason) -> what `encode` returns, with every broken text mended. `reason` is that of the attempt
-- before: it begins with the path of the first broken text.
local function encoded(value, where, reason)
    local before = mend.count
    local bytes, kind, why = encode(value, mend.text)
    local path = match(reason, "^(.-) ?is a string that is not UTF%-8$") or ""
    if find(path, "^has ") then path = " " .. path end
    if bytes then warn(where .. path, mend.count - before) end
    return bytes, kind, why
end

function mend.answer(value, where, reason) return encoded(value, where, reason) end

-- arguments(name, given, reason) -> as `encode`. An argument that a call takes as bytes is sent unchanged.
function mend.arguments(name, given, reason)
    local key = BINARY[name]
    local raw = key and given[key]
    local where = line() .. name .. ": the argument "
    if type(raw) ~= "string" or utf8_len(raw) then return encoded(given, where, reason) end
    -- Arguments of these calls are a table of the prelude's, of fewer than 16 keys: its size is in its first byte.
    local others, n = {}, 0
    for k, v in next, given do
        n = n + 1
        if k ~= key then others[k] = v end
    end
    local bytes, kind, why = encode(others)
    if not bytes and kind == "broken" then bytes, kind, why = encoded(others, where, why) end
    if not bytes then return nil, kind, why end
    local whole = char(0x80 | n) .. sub(bytes, 2) .. pack(">Bs1Bs4", 0xd9, key, 0xc6, raw)
    if #whole > x.max_output then return nil, "output_limit", "is larger than " .. x.max_output .. " bytes" end
    return whole
end

-- A line of the log, or the text of a progress report: `what` names which.
function mend.line(s, what)
    local text, replaced = mend.text(s)
    local where = line() .. what
    return text, function() warn(where, replaced) end
end

return mend
