-- expect: memory_limit
-- Packs long argument lists into tables and keeps them.
agent = {}
function agent.resolve(args, config, context)
    local keep = {}
    while true do keep[#keep + 1] = table.pack(table.unpack({}, 1, 100000)) end
end
