-- expect: ok value=[false, false]
-- Closes the run's own coroutine, directly and from a coroutine inside it.
agent = {}
function agent.resolve(args, config, context)
    local main = coroutine.running()
    local outside = pcall(coroutine.close, main)
    local inside = coroutine.wrap(function() return (pcall(coroutine.close, main)) end)()
    return { outside, inside }
end
