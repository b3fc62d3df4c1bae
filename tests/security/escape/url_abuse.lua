-- expect: ok value=true
-- Feeds the URL library values that are no text, tables with metamethods, and texts that are no URLs.
agent = {}
function agent.resolve(args, config, context)
    local lying = setmetatable({}, { __index = function() return "x" end, __pairs = error, __len = error, __tostring = error })
    for _, f in pairs(url) do
        for _, v in ipairs({ 1, true, print, coroutine.create(print) }) do if pcall(f, v) then return false end end
        if pcall(f) then return false end
    end
    for _, bad in ipairs({ "http://a b", "http://%", "http://a:99999999999999999999/", "http://[", "\0", "a%zz" }) do
        if pcall(url.parse, bad) then return bad end
    end
    return url.build(lying) == "" and url.query({}) == "" and not pcall(url.query, { a = { { } } })
end
