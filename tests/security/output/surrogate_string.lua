-- expect: ok value="\ufffd\ufffd\ufffd"
-- Returns half of a surrogate pair, which no decoder of the host may choke on.
agent = {}
function agent.resolve(args, config, context)
    return "\xed\xa0\x80"
end
