-- expect: ok value=true
-- Looks in the context and the arguments for anything but plain values and the documented functions.
agent = {}
function agent.resolve(args, config, context)
    for _, t in ipairs({ args, config, context }) do
        if getmetatable(t) ~= nil then return false end
        for key in pairs(t) do
            if type(key) ~= "string" then return false end
        end
    end
    return type(context.search) == "function" and type(context.get) == "function" and context.config ~= nil
end
