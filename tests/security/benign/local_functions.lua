-- expect: ok value=[120, true, false]
-- Uses local functions, also ones that call each other.
agent = {}
local is_odd
local function is_even(n) return n == 0 or is_odd(n - 1) end
function is_odd(n) return n ~= 0 and is_even(n - 1) end
local function factorial(n) return n <= 1 and 1 or n * factorial(n - 1) end
function agent.resolve(args, config, context)
    return { factorial(5), is_even(10), is_odd(10) }
end
