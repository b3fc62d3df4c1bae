-- expect: memory_limit
-- Makes texts of a hundred thousand characters and keeps them.
agent = {}
function agent.resolve(args, config, context)
    local codes, keep = {}, {}
    for i = 1, 100000 do codes[i] = 0x10000 + i end
    while true do keep[#keep + 1] = utf8.char(table.unpack(codes)) .. #keep end
end
