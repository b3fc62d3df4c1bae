-- expect: ok value=true
-- Asks for the metatables of every kind of value, with and without an argument.
agent = {}
function agent.resolve(args, config, context)
    for _, v in ipairs({ 1, true, print, coroutine.create(print), context, config, json.null }) do
        local meta = getmetatable(v)
        if meta then return false end
    end
    return getmetatable(nil) == nil
end
