-- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) for scripts. Receives the prelude's private pieces; touches no global.
local x = ...
local error, type = x.error, x.type
local byte, char, rep, gsub = x.byte, x.char, x.rep, x.gsub
local format, pack, unpack = x.format, x.pack, x.unpack

local K = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

-- Rotation of a 32-bit word kept in a 64-bit integer: double it, then shift.
local function ror(v, n) return (v << 32 | v) >> n & 0xffffffff end

local function digest(message)
    local length = #message
    message = message .. "\x80" .. rep("\0", (55 - length) % 64) .. pack(">I8", length * 8)
    local h0, h1, h2, h3 = 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a
    local h4, h5, h6, h7 = 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19
    local w = {}
    for block = 1, #message, 64 do
        for i = 1, 16 do w[i] = unpack(">I4", message, block + 4 * (i - 1)) end
        for i = 17, 64 do
            local p, q = w[i - 15], w[i - 2]
            local s0 = ror(p, 7) ~ ror(p, 18) ~ p >> 3
            local s1 = ror(q, 17) ~ ror(q, 19) ~ q >> 10
            w[i] = w[i - 16] + s0 + w[i - 7] + s1 & 0xffffffff
        end
        local a, b, c, d, e, f, g, h = h0, h1, h2, h3, h4, h5, h6, h7
        for i = 1, 64 do
            local s1 = ror(e, 6) ~ ror(e, 11) ~ ror(e, 25)
            local t1 = h + s1 + (e & f ~ ~e & g) + K[i] + w[i]
            local s0 = ror(a, 2) ~ ror(a, 13) ~ ror(a, 22)
            local t2 = s0 + (a & b ~ a & c ~ b & c)
            h, g, f, e, d, c, b, a = g, f, e, d + t1 & 0xffffffff, c, b, a, t1 + t2 & 0xffffffff
        end
        h0, h1, h2, h3 = h0 + a & 0xffffffff, h1 + b & 0xffffffff, h2 + c & 0xffffffff, h3 + d & 0xffffffff
        h4, h5, h6, h7 = h4 + e & 0xffffffff, h5 + f & 0xffffffff, h6 + g & 0xffffffff, h7 + h & 0xffffffff
    end
    return pack(">I4I4I4I4I4I4I4I4", h0, h1, h2, h3, h4, h5, h6, h7)
end

local function hex(s) return (gsub(s, ".", function(c) return format("%02x", byte(c)) end)) end

local function check(name, value)
    if type(value) ~= "string" then error(name .. ": a string is expected, got " .. type(value), 3) end
end

local function xor_with(s, n) return (gsub(s, ".", function(c) return char(byte(c) ~ n) end)) end

local function sha256(data)
    check("crypto.sha256", data)
    return hex(digest(data))
end

local function hmac_sha256(key, data)
    check("crypto.hmac_sha256", key)
    check("crypto.hmac_sha256", data)
    if #key > 64 then key = digest(key) end
    key = key .. rep("\0", 64 - #key)
    return hex(digest(xor_with(key, 0x5c) .. digest(xor_with(key, 0x36) .. data)))
end

return { sha256 = sha256, hmac_sha256 = hmac_sha256 }
