-- expect: ok value=["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", true]
-- Encodes the test vectors of RFC 4648 and decodes every byte.
agent = {}
function agent.resolve(args, config, context)
    local encoded = {}
    for i = 0, 6 do encoded[i + 1] = base64.encode(("foobar"):sub(1, i)) end
    local bytes = {}
    for i = 0, 255 do bytes[i + 1] = string.char(i) end
    local all = table.concat(bytes)
    encoded[8] = base64.decode(base64.encode(all)) == all and base64.decode("Zm9v\nYmFy") == "foobar"
    return encoded
end
