-- Base64 for scripts (RFC 4648 section 4, with padding). Receives the prelude's private pieces; touches no global.
local x = ...
local error, type, concat = x.error, x.type, x.concat
local byte, char, sub, find, gsub, rep = x.byte, x.char, x.sub, x.find, x.gsub, x.rep

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local LETTER, VALUE = {}, {}
for i = 1, 64 do
    LETTER[i - 1] = byte(ALPHABET, i)
    VALUE[byte(ALPHABET, i)] = i - 1
end

local function encode(s)
    if type(s) ~= "string" then error("base64.encode: a string is expected, got " .. type(s), 2) end
    local out = {}
    for i = 1, #s - 2, 3 do
        local a, b, c = byte(s, i, i + 2)
        local n = a << 16 | b << 8 | c
        out[#out + 1] = char(LETTER[n >> 18], LETTER[n >> 12 & 63], LETTER[n >> 6 & 63], LETTER[n & 63])
    end
    local left = #s % 3
    if left == 1 then
        local n = byte(s, #s) << 16
        out[#out + 1] = char(LETTER[n >> 18], LETTER[n >> 12 & 63]) .. "=="
    elseif left == 2 then
        local a, b = byte(s, #s - 1, #s)
        local n = a << 16 | b << 8
        out[#out + 1] = char(LETTER[n >> 18], LETTER[n >> 12 & 63], LETTER[n >> 6 & 63]) .. "="
    end
    return concat(out)
end

local function decode(s)
    if type(s) ~= "string" then error("base64.decode: a string is expected, got " .. type(s), 2) end
    s = gsub(s, "[ \t\r\n]", "")
    local body = gsub(s, "=+$", "")
    if find(body, "[^%w+/]") or #s - #body > 2 or #body % 4 == 1 or (#s ~= #body and #s % 4 ~= 0) then
        error("base64.decode: the text is not base64", 2)
    end
    local out = {}
    local padded = body .. rep("A", -#body % 4)
    for i = 1, #padded, 4 do
        local a, b, c, d = byte(padded, i, i + 3)
        local n = VALUE[a] << 18 | VALUE[b] << 12 | VALUE[c] << 6 | VALUE[d]
        out[#out + 1] = char(n >> 16, n >> 8 & 255, n & 255)
    end
    return sub(concat(out), 1, #body * 3 // 4)
end

return { encode = encode, decode = decode }
