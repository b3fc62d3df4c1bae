-- expect: script_error message~"attempt to yield from outside a coroutine"
-- Yields to the driver, which would take the values for a request.
agent = {}
function agent.resolve(args, config, context)
    coroutine.yield("call", "context.search", "\x80")
    return true
end
