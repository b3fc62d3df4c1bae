-- expect: cpu_limit
-- Counts and walks the characters of a long text from its far end.
agent = {}
function agent.resolve(args, config, context)
    local text = ("ß"):rep(1000000)
    local n = 0
    while true do n = n + utf8.len(text) + utf8.offset(text, -500000) end
end
