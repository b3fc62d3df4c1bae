-- expect: ok value=false calls=0
-- Calls the host in a coroutine that was made inside a callback.
agent = {}
function agent.resolve(args, config, context)
    local reached
    local _ = ("x"):gsub("x", function()
        local inner = coroutine.create(function() reached = pcall(context.search, "deploy") end)
        coroutine.resume(inner)
    end)
    return reached == true
end
