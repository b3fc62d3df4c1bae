-- expect: ok value=[5000, 50005000]
-- Recurses five thousand deep, and ten thousand deep in tail position.
agent = {}
local function depth(n) return n == 0 and 0 or 1 + depth(n - 1) end
local function sum(n, total)
    if n == 0 then return total end
    return sum(n - 1, total + n)
end
function agent.resolve(args, config, context)
    return { depth(5000), sum(10000, 0) }
end
