-- expect: ok value=[]
-- Looks for the names that the trusted code uses for itself.
agent = {}
function agent.resolve(args, config, context)
    local found = json.array({})
    for _, name in ipairs({
        "real", "wrapped", "hosts", "held", "CALLS", "fill", "modules", "put", "begin", "step", "why", "host_call", "inbox", "FAILURE",
        "CALL", "LOG", "NULL", "ARRAYS", "encode", "decode", "main_thread", "traceback", "x", "arg",
    }) do
        if _ENV[name] ~= nil then found[#found + 1] = name end
    end
    return found
end
