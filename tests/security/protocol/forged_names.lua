-- expect: ok value=[] calls=0
-- Looks for a function that calls the host by any name: there is none to give a forged name to.
agent = {}
function agent.resolve(args, config, context)
    local found = json.array({})
    for _, name in ipairs({ "call", "host", "host_call", "invoke", "request", "rpc", "send", "__call" }) do
        if context[name] ~= nil or _ENV[name] ~= nil then found[#found + 1] = name end
    end
    return found
end
