-- expect: ok value=true
-- Feeds base64 and crypto values that are no strings.
agent = {}
function agent.resolve(args, config, context)
    for _, f in ipairs({ base64.encode, base64.decode, crypto.sha256, crypto.hmac_sha256 }) do
        for _, v in ipairs({ 1, true, {}, print }) do
            if pcall(f, v, v) then return false end
        end
        if pcall(f) then return false end
    end
    return not pcall(base64.decode, "!!!!") and not pcall(base64.decode, "A") and not pcall(base64.decode, "AA=")
end
