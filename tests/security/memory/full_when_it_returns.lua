-- expect: memory_limit
-- Returns an answer that is legal while no memory is left to encode it.
agent = {}
keep = {}
function agent.resolve(args, config, context)
    local answer = {}
    for i = 1, 2000 do answer[i] = "item " .. i end
    local size = 1 << 20
    while size > 16 do
        if not pcall(function() keep[#keep + 1] = ("x"):rep(size) .. #keep end) then size = size // 2 end
    end
    return answer
end
