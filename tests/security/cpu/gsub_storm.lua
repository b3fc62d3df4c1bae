-- expect: cpu_limit
-- Rewrites one text again and again with a callback.
agent = {}
function agent.resolve(args, config, context)
    local text = ("ab"):rep(2000)
    while true do
        text = text:gsub(".", function(c) return c == "a" and "b" or "a" end)
    end
end
