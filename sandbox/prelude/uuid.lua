-- UUIDs (RFC 9562), versions 4 and 7. Their bits come from ChaCha20 (RFC 8439) under a key that the kernel made for this
-- run: the generator behind math.random can be worked back from what it returned, and a script may seed it.
local x = ...
local format, pack, unpack, sub = x.format, x.pack, x.unpack, x.sub
local native, isyieldable, os_time, key = x.native, x.isyieldable, x.os_time, x.key

local function rol(v, n)
    v = v & 0xffffffff
    return (v << n | v >> 32 - n) & 0xffffffff
end
local function quarter(s, a, b, c, d)
    s[a] = s[a] + s[b]; s[d] = rol(s[d] ~ s[a], 16)
    s[c] = s[c] + s[d]; s[b] = rol(s[b] ~ s[c], 12)
    s[a] = s[a] + s[b]; s[d] = rol(s[d] ~ s[a], 8)
    s[c] = s[c] + s[d]; s[b] = rol(s[b] ~ s[c], 7)
    s[a], s[c] = s[a] & 0xffffffff, s[c] & 0xffffffff
end
local counter = 0
local function block()
    local start = { 0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, unpack("<I4I4I4I4I4I4I4I4", key) }
    start[13], start[14], start[15], start[16] = counter & 0xffffffff, counter >> 32, 0, 0
    counter = counter + 1
    local s = {}
    for i = 1, 16 do s[i] = start[i] end
    for _ = 1, 10 do
        quarter(s, 1, 5, 9, 13)
        quarter(s, 2, 6, 10, 14)
        quarter(s, 3, 7, 11, 15)
        quarter(s, 4, 8, 12, 16)
        quarter(s, 1, 6, 11, 16)
        quarter(s, 2, 7, 12, 13)
        quarter(s, 3, 8, 9, 14)
        quarter(s, 4, 5, 10, 15)
    end
    local out = ""
    for i = 1, 16 do out = out .. pack("<I4", s[i] + start[i] & 0xffffffff) end
    return out
end

local pool, at = "", 0
local function bytes16()
    if at >= #pool then pool, at = block(), 0 end
    at = at + 16
    return sub(pool, at - 15, at)
end

local function shown(high, low)
    return format("%08x-%04x-%04x-%04x-%012x", high >> 32, high >> 16 & 0xffff, high & 0xffff, low >> 48, low & 0xffffffffffff)
end
local function variant(low) return low & 0x3fffffffffffffff | 0x8000000000000000 end

-- The millisecond of the last one and a counter below it (RFC 9562, section 6.2, method 1): they sort as they were made.
local last_ms, below = 0, 0

return {
    v4 = function()
        local high, low = unpack(">I8I8", bytes16())
        return shown(high & ~0xf000 | 0x4000, variant(low))
    end,
    v7 = function()
        local ms = os_time() * 1000
        if isyieldable() then ms = unpack(">d", native("uuid.v7", "clock:now", "")) * 1000 // 1 | 0 end
        local high, low = unpack(">I8I8", bytes16())
        if ms > last_ms then
            last_ms, below = ms, high & 0x7ff
        else
            below = below + 1
            if below > 0xfff then last_ms, below = last_ms + 1, 0 end
        end
        return shown(last_ms << 16 | 0x7000 | below, variant(low))
    end,
}
