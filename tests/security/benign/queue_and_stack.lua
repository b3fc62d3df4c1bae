-- expect: ok value=[[3, 2, 1], [1, 2, 3]]
-- Uses lists as a stack and as a queue.
agent = {}
function agent.resolve(args, config, context)
    local stack, queue, a, b = { 1, 2, 3 }, { 1, 2, 3 }, {}, {}
    while #stack > 0 do a[#a + 1] = table.remove(stack) end
    while #queue > 0 do b[#b + 1] = table.remove(queue, 1) end
    return { a, b }
end
