-- expect: ok value=true
-- Reaches the standard streams and pipes through any leftover of the io library, also as a method of a string.
agent = {}
function agent.resolve(args, config, context)
    local quiet = not pcall(function() return io.stdout:write("x") end)
        and not pcall(function() return io.popen("id") end)
        and not pcall(function() return io.lines("/etc/passwd") end)
        and not pcall(function() return ("x"):write() end)
    return quiet and io == nil and warn == nil
end
