-- JSON for scripts (RFC 8259), in pure Lua so that it also works inside callbacks, where nothing can be yielded.
-- Receives the prelude's private pieces; never touches a global.
local x = ...
local ARRAYS, NULL, shape, max_depth, error = x.ARRAYS, x.NULL, x.shape, x.max_depth, x.error
local rawget, rawequal, next, type, math_type = x.rawget, x.rawequal, x.next, x.type, x.math_type
local tonumber, concat, pcall, utf8_len, utf8_char = x.tonumber, x.concat, x.pcall, x.utf8_len, x.utf8_char
local byte, sub, find, match, gsub = x.byte, x.sub, x.find, x.match, x.gsub
local format, char = x.format, x.char

local ESCAPES = {
    ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
}

local function broken(pos, what)
    error("json.decode: " .. what .. " at byte " .. pos, 3)
end

-- decode ---------------------------------------------------------------------------------------------------------
local text, null_value

local function skip(pos) return (find(text, "[^ \t\r\n]", pos)) or #text + 1 end

local function hex4(pos)
    local digits = match(text, "^%x%x%x%x", pos)
    if not digits then error({ pos, "a \\u escape without four hexadecimal digits" }, 0) end
    return tonumber(digits, 16)
end

local function read_string(pos)      -- pos: after the opening quote
    local parts, n = {}, 0
    while true do
        local stop = find(text, '["\\%c]', pos)
        if not stop then error({ pos, "a string without end" }, 0) end
        n = n + 1
        parts[n] = sub(text, pos, stop - 1)
        local c = byte(text, stop)
        if c == 34 then
            return n == 1 and parts[1] or concat(parts), stop + 1
        elseif c == 92 then
            local escape = sub(text, stop + 1, stop + 1)
            if escape == "u" then
                local code = hex4(stop + 2)
                pos = stop + 6
                if code >= 0xd800 and code < 0xdc00 and sub(text, pos, pos + 1) == "\\u" then
                    local low = hex4(pos + 2)
                    if low >= 0xdc00 and low < 0xe000 then
                        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)
                        pos = pos + 6
                    end
                end
                if code >= 0xd800 and code < 0xe000 then code = 0xfffd end   -- a lone surrogate has no character
                n = n + 1
                parts[n] = utf8_char(code)
            else
                local plain = ESCAPES[escape]
                if not plain then error({ stop, "an unknown escape" }, 0) end
                n = n + 1
                parts[n] = plain
                pos = stop + 2
            end
        elseif c == 127 then                 -- DEL is a control character to Lua, but legal in JSON
            n = n + 1
            parts[n] = "\127"
            pos = stop + 1
        else
            error({ stop, "a control character in a string" }, 0)
        end
    end
end

local read_value
local function read_list(pos, depth)
    local t, n = {}, 0
    ARRAYS[t] = true
    pos = skip(pos)
    if byte(text, pos) == 93 then return t, pos + 1 end
    while true do
        n = n + 1
        t[n], pos = read_value(pos, depth + 1)
        pos = skip(pos)
        local c = byte(text, pos)
        pos = pos + 1
        if c == 93 then return t, pos end
        if c ~= 44 then error({ pos - 1, "',' or ']' is missing" }, 0) end
    end
end
local function read_object(pos, depth)
    local t = {}
    pos = skip(pos)
    if byte(text, pos) == 125 then return t, pos + 1 end
    while true do
        pos = skip(pos)
        if byte(text, pos) ~= 34 then error({ pos, "a key in quotes is missing" }, 0) end
        local key
        key, pos = read_string(pos + 1)
        pos = skip(pos)
        if byte(text, pos) ~= 58 then error({ pos, "':' is missing" }, 0) end
        t[key], pos = read_value(pos + 1, depth + 1)
        pos = skip(pos)
        local c = byte(text, pos)
        pos = pos + 1
        if c == 125 then return t, pos end
        if c ~= 44 then error({ pos - 1, "',' or '}' is missing" }, 0) end
    end
end
local function read_number(pos)
    local _, last = find(text, "^-?%d+", pos)
    if not last then error({ pos, "a value is missing or unknown" }, 0) end
    if find(text, "^-?0%d", pos) then error({ pos, "a number with a leading zero" }, 0) end
    local _, fraction = find(text, "^%.%d+", last + 1)
    last = fraction or last
    local _, exponent = find(text, "^[eE][-+]?%d+", last + 1)
    last = exponent or last
    -- An integer beyond 64 bits becomes a float here (lobject.c, l_str2int).
    return tonumber((sub(text, pos, last))), last + 1
end
function read_value(pos, depth)
    if depth > max_depth then error({ pos, "nested deeper than " .. max_depth .. " levels" }, 0) end
    pos = skip(pos)
    local c = byte(text, pos)
    if c == 34 then return read_string(pos + 1) end
    if c == 123 then return read_object(pos + 1, depth) end
    if c == 91 then return read_list(pos + 1, depth) end
    if c == 116 and sub(text, pos, pos + 3) == "true" then return true, pos + 4 end
    if c == 102 and sub(text, pos, pos + 4) == "false" then return false, pos + 5 end
    if c == 110 and sub(text, pos, pos + 3) == "null" then return null_value, pos + 4 end
    return read_number(pos)
end

local function decode(s, options)
    if type(s) == "table" and rawget(s, "decode") then
        error("json.decode: call it with a dot, json.decode(...), not with a colon", 2)
    end
    if type(s) ~= "string" then error("json.decode: a string is expected, got " .. type(s), 2) end
    if not utf8_len(s) then error("json.decode: the text is not UTF-8", 2) end
    text, null_value = s, type(options) == "table" and rawget(options, "null") or nil
    local ok, value, pos = pcall(read_value, 1, 1)
    if ok then
        pos = skip(pos)
        if pos <= #s then ok, value = false, { pos, "something follows the value" } end
    end
    text, null_value = nil, nil
    if ok then return value end
    if type(value) == "table" then broken(value[1], value[2]) end
    error(value, 0)                                -- not one of ours: out of memory, or an interrupted state
end

-- encode ---------------------------------------------------------------------------------------------------------
local SHORT = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
    ["\t"] = "\\t" }
local function escape(c) return SHORT[c] or format("\\u%04x", byte(c)) end

local function quote(s)
    if not utf8_len(s) then error({ "a string that is not UTF-8" }, 0) end
    return '"' .. gsub(s, '[%c"\\]', escape) .. '"'
end

local write
local function write_table(v, parts, open, depth)
    if rawequal(v, NULL) then
        parts[#parts + 1] = "null"
        return
    end
    if open[v] then error({ "a table that contains itself" }, 0) end
    if depth > max_depth then error({ "a value nested deeper than " .. max_depth .. " levels" }, 0) end
    local what, n = shape(v)
    if not what then error({ "a table with " .. n }, 0) end
    open[v] = true
    if what == "list" then
        parts[#parts + 1] = "["
        for i = 1, n do
            if i > 1 then parts[#parts + 1] = "," end
            write(rawget(v, i), parts, open, depth + 1)
        end
        parts[#parts + 1] = "]"
    else
        parts[#parts + 1] = "{"
        local first = true
        for key, value in next, v do
            if not first then parts[#parts + 1] = "," end
            first = false
            parts[#parts + 1] = quote(key)
            parts[#parts + 1] = ":"
            write(value, parts, open, depth + 1)
        end
        parts[#parts + 1] = "}"
    end
    open[v] = nil
end
function write(v, parts, open, depth)
    local t = type(v)
    if t == "table" then return write_table(v, parts, open, depth) end
    local out
    if t == "string" then out = quote(v)
    elseif t == "nil" then out = "null"
    elseif t == "boolean" then out = v and "true" or "false"
    elseif t == "number" then
        if math_type(v) == "integer" then
            out = format("%d", v)
        elseif v ~= v or v == 1 / 0 or v == -1 / 0 then
            error({ "a number that JSON cannot hold (NaN or infinity)" }, 0)
        else
            out = format("%.17g", v)
            if not find(out, "[.e]") then out = out .. ".0" end
        end
    else
        error({ "a " .. t .. " value" }, 0)
    end
    parts[#parts + 1] = out
end
local function encode(v)
    local parts = {}
    local ok, problem = pcall(write, v, parts, {}, 1)
    if ok then return concat(parts) end
    if type(problem) == "table" then error("json.encode: cannot encode " .. problem[1], 2) end
    error(problem, 0)
end

local function array(t)
    if type(t) ~= "table" then error("json.array: a table is expected, got " .. type(t), 2) end
    ARRAYS[t] = true
    return t
end

return { decode = decode, encode = encode, array = array }
