-- expect: ok value=true log~"[log truncated: limit reached]" limits={log_bytes=100}
-- Has its log cut in the middle of a character.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 100 do print("ä€𝄞ä€𝄞ä€") end
    return true
end
