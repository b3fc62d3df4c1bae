-- expect: ok value=[1, "table"]
-- Uses a weak table as a cache of what is alive.
agent = {}
function agent.resolve(args, config, context)
    local cache, n = setmetatable({}, { __mode = "v" }), 0
    local function load_once(key)
        if not cache[key] then
            n = n + 1
            cache[key] = { key }
        end
        return cache[key]
    end
    local first = load_once("a")
    local second = load_once("a")
    return { n, first == second and type(first) }
end
