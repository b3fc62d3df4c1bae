-- expect: script_error message~"not enough memory (raised by the script)"
-- Raises the allocator's text in a coroutine whose error wrap passes on.
agent = {}
function agent.resolve(args, config, context)
    coroutine.wrap(function() error("not enough memory", 0) end)()
end
