-- expect: ok value=true
-- Uses the debug library to read the registry, upvalues and other metatables.
agent = {}
function agent.resolve(args, config, context)
    return debug == nil and not pcall(function() return debug.getregistry() end)
        and not pcall(function() return debug.getupvalue(tostring, 1) end)
        and not pcall(function() return debug.setmetatable("", {}) end)
        and not pcall(function() return debug.sethook(function() end, "c") end)
end
