-- expect: ok value=true
-- Reaches the host interpreter through the table that the binding defines.
agent = {}
function agent.resolve(args, config, context)
    return python == nil and _G.python == nil and rawget(_G, "python") == nil
        and not pcall(function() return python.eval("1") end)
        and not pcall(function() return python.none.__class__ end)
end
