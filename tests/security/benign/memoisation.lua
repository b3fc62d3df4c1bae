-- expect: ok value=[832040, 31]
-- Remembers results of a recursive function.
agent = {}
local calls = 0
local function memoised(f)
    local known = {}
    return function(n)
        if known[n] == nil then
            calls = calls + 1
            known[n] = f(n)
        end
        return known[n]
    end
end
local fibonacci
fibonacci = memoised(function(n) return n < 2 and n or fibonacci(n - 1) + fibonacci(n - 2) end)
function agent.resolve(args, config, context)
    return { fibonacci(30), calls }
end
