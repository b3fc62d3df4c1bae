-- expect: script_error message~"not enough memory"
-- Closes a coroutine that had failed with the allocator's text and raises what close returns.
agent = {}
function agent.resolve(args, config, context)
    local inner = coroutine.create(function() error("not enough memory", 0) end)
    coroutine.resume(inner)
    local _, why = coroutine.close(inner)
    error(why, 0)
end
