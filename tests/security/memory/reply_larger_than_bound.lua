-- expect: memory_limit limits={memory_bytes=65536}
-- Asks the host for more than fits in what is left.
agent = {}
function agent.resolve(args, config, context)
    local keep = {}
    while true do keep[#keep + 1] = context.search("deploy") end
end
