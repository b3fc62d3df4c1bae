-- expect: cpu_limit
-- Takes texts of a megabyte apart as URLs, again and again.
agent = {}
function agent.resolve(args, config, context)
    local texts = { ("@"):rep(1000000), "http://" .. (":"):rep(1000000), "?" .. ("&="):rep(500000), ("/"):rep(1000000) }
    while true do for _, text in ipairs(texts) do pcall(url.parse, text) end end
end
