-- expect: ok value=true
-- Sets metatables on values that are no tables, and of types that are no tables.
agent = {}
function agent.resolve(args, config, context)
    for _, v in ipairs({ 1, true, "text", print, coroutine.create(print) }) do
        if pcall(setmetatable, v, {}) then return type(v) end
    end
    return not pcall(setmetatable, {}, 1) and not pcall(setmetatable, {}, "x") and pcall(setmetatable, {}, nil)
end
