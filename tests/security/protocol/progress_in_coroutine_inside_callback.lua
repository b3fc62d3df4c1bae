-- expect: ok value=true
-- Reports progress in a coroutine that was made inside a callback: dropped there, as in the callback itself.
agent = {}
function agent.resolve(args, config, context)
    local reached = false
    local _ = ("x"):gsub("x", function()
        coroutine.wrap(function()
            context.progress(0.5, "half")
            log.info("a line")
            reached = true
        end)()
    end)
    return reached
end
