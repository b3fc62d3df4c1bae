-- expect: ok value=[]
-- Looks for every function that turns text, a file or bytecode into a function.
agent = {}
function agent.resolve(args, config, context)
    local found = json.array({})
    for _, name in ipairs({ "load", "loadstring", "loadfile", "dofile", "setfenv", "getfenv", "newproxy", "module" }) do
        if _ENV[name] ~= nil then found[#found + 1] = name end
    end
    if string.dump ~= nil then found[#found + 1] = "string.dump" end
    return found
end
