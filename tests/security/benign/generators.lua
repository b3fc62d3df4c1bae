-- expect: ok value=[[1, 1, 2, 3, 5, 8], ["ab", "ac", "ba", "bc", "ca", "cb"]]
-- Uses coroutines as generators of numbers and of permutations.
agent = {}
local function fibonacci(n)
    return coroutine.wrap(function()
        local a, b = 1, 1
        for _ = 1, n do
            coroutine.yield(a)
            a, b = b, a + b
        end
    end)
end
local function pairs_of(letters)
    return coroutine.wrap(function()
        for a in letters:gmatch(".") do
            for b in letters:gmatch(".") do
                if a ~= b then coroutine.yield(a .. b) end
            end
        end
    end)
end
function agent.resolve(args, config, context)
    local numbers, words = {}, {}
    for n in fibonacci(6) do numbers[#numbers + 1] = n end
    for word in pairs_of("abc") do words[#words + 1] = word end
    return { numbers, words }
end
