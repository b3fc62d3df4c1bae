-- expect: memory_limit|cpu_limit
-- Builds a chain of weak keys that the collector resolves one by one.
agent = {}
function agent.resolve(args, config, context)
    local weak = setmetatable({}, { __mode = "k" })
    local first = {}
    local key = first
    while true do
        local next_key = {}
        weak[key] = next_key
        key = next_key
    end
end
