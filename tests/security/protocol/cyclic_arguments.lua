-- expect: ok value=[true, true, true] calls=0
-- Calls the host with arguments that are cyclic, too deep or no plain values.
agent = {}
function agent.resolve(args, config, context)
    local cyclic, deep = {}, {}
    cyclic.query = cyclic
    for _ = 1, 200 do deep = { deep } end
    local function why(v)
        local ok, text = pcall(context.search, v)
        return not ok and text or "answered"
    end
    return {
        why(cyclic):find("contains itself", 1, true) ~= nil,
        why({ query = deep }):find("nested deeper", 1, true) ~= nil,
        why({ query = print }):find("is a function", 1, true) ~= nil,
    }
end
