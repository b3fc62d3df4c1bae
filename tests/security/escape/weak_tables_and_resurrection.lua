-- expect: ok value=true
-- Uses weak tables to see objects after the collector took them.
agent = {}
function agent.resolve(args, config, context)
    local weak = setmetatable({}, { __mode = "kv" })
    for i = 1, 1000 do weak[i] = { i } end
    local junk
    for i = 1, 50000 do junk = { i } end
    for _, v in pairs(weak) do
        if type(v) ~= "table" or type(v[1]) ~= "number" then return false end
    end
    return true
end
