-- expect: ok value=[[[19, 22], [43, 50]], [2, 3, 5, 7, 11, 13, 17, 19]]
-- Multiplies matrices and sieves primes.
agent = {}
local function multiply(a, b)
    local c = {}
    for i = 1, #a do
        c[i] = {}
        for j = 1, #b[1] do
            local sum = 0
            for k = 1, #b do sum = sum + a[i][k] * b[k][j] end
            c[i][j] = sum
        end
    end
    return c
end
function agent.resolve(args, config, context)
    local primes, composite = {}, {}
    for n = 2, 20 do
        if not composite[n] then
            primes[#primes + 1] = n
            for m = n * n, 20, n do composite[m] = true end
        end
    end
    return { multiply({ { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } }), primes }
end
