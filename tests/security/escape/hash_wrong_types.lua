-- expect: ok value=true
-- Feeds hashes values that are no strings, and any bytes.
agent = {}
function agent.resolve(args, config, context)
    for _, f in pairs(hash) do
        for _, v in ipairs({ 1, true, {}, print, setmetatable({}, { __tostring = error }) }) do if pcall(f, v) then return false end end
        if pcall(f) or #f("\0\xff") < 32 then return false end
    end
    return hash.md5("") == "d41d8cd98f00b204e9800998ecf8427e"
end
