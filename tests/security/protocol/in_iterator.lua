-- expect: ok value=3 calls=3
-- Calls the host in the iterator of a for loop.
agent = {}
function agent.resolve(args, config, context)
    local n = 0
    for _ in function() return n < 3 and context.sources() or nil end do n = n + 1 end
    return n
end
