-- expect: ok value=["01000002", 258, "abc", 7, 3.5]
-- Packs and unpacks numbers and texts.
agent = {}
function agent.resolve(args, config, context)
    local packed = string.pack("<I2>I2", 1, 2)
    local hex = packed:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
    return {
        hex, (string.unpack(">I2", "\1\2")), (string.unpack("s1", "\3abc")), string.packsize("<i4i2b"),
        (string.unpack("<d", string.pack("<d", 3.5))),
    }
end
