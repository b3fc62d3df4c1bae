-- expect: ok value=true
-- Uses tables and functions as keys: what next returns first depends on addresses, but no address comes out.
agent = {}
function agent.resolve(args, config, context)
    local t = {}
    for i = 1, 64 do t[{}] = i end
    local order = {}
    for key, value in pairs(t) do
        if type(key) ~= "table" or tostring(key) ~= "table" then return false end
        order[#order + 1] = value
    end
    return #order == 64
end
