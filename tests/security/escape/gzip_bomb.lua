-- expect: ok value=true limits={memory_bytes=67108864,cpu_s=5}
-- A bomb, a bomb in a bomb, damaged data and wrong types: errors, and all goes on.
agent = {}
function agent.resolve(args, config, context)
    local bomb = gzip.compress(("\0"):rep(20000000))
    if #bomb > 100000 or pcall(gzip.decompress, bomb) then return false end
    local ok, problem = pcall(gzip.decompress, gzip.compress(bomb) .. bomb, { max_bytes = 100000 })
    if ok or not problem:find("holds more than 100000 bytes", 1, true) then return problem end
    for _, bad in ipairs({ "", "x", bomb:sub(1, 1000), 5, {}, print }) do if pcall(gzip.decompress, bad) then return false end end
    return gzip.decompress(gzip.compress("")) == "" and not pcall(gzip.decompress, bomb, { max_bytes = -1 })
end
