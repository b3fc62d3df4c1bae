-- expect: ok value=true
-- Changes the list while it is being sorted, which must not read outside of it.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 200 do t[i] = (i * 7919) % 211 end
    pcall(table.sort, t, function(a, b)
        t[#t] = nil
        t[1] = nil
        return (a or 0) < (b or 0)
    end)
    return true
end
