-- expect: script_error message~"not UTF-8"
-- Returns half of a surrogate pair, which no decoder of the host may choke on.
agent = {}
function agent.resolve(args, config, context)
    return "\xed\xa0\x80"
end
