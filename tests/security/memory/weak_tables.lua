-- expect: memory_limit
-- Keeps everything alive through values of a weak table that refer to their keys.
agent = {}
function agent.resolve(args, config, context)
    local weak, keep = setmetatable({}, { __mode = "v" }), {}
    while true do
        local key = {}
        weak[key] = { key }
        keep[#keep + 1] = weak[key]
    end
end
