-- expect: ok value=true
-- Inserts and removes at positions outside the list.
agent = {}
function agent.resolve(args, config, context)
    local t = { 1, 2, 3 }
    for _, at in ipairs({ 0, -1, 5, math.maxinteger, math.mininteger }) do
        if pcall(table.insert, t, at, "x") or pcall(table.remove, t, at - (at == 0 and 1 or at == 5 and -1 or 0)) then
            return at
        end
    end
    return #t == 3
end
