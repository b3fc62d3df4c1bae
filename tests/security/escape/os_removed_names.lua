-- expect: ok value=[]
-- Looks for every function of os that reaches the host, by name and by walking the table.
agent = {}
function agent.resolve(args, config, context)
    local found = json.array({})
    for _, name in ipairs({ "execute", "exit", "getenv", "remove", "rename", "setlocale", "tmpname" }) do
        if os[name] ~= nil or rawget(os, name) ~= nil then found[#found + 1] = name end
    end
    local known = { clock = true, date = true, difftime = true, time = true }
    for name in pairs(os) do
        if not known[name] then found[#found + 1] = "os." .. name end
    end
    return found
end
