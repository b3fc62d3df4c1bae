-- expect: ok value=[[1, 2, 1, 3], [1, 4, 9]]
-- Makes counters that keep state of their own, and functions in a loop.
agent = {}
local function counter()
    local n = 0
    return function() n = n + 1 return n end
end
function agent.resolve(args, config, context)
    local a, b = counter(), counter()
    local squares = {}
    for i = 1, 3 do squares[i] = function() return i * i end end
    return { { a(), a(), b(), a() }, { squares[1](), squares[2](), squares[3]() } }
end
