-- expect: script_error message~"attempt to yield from outside a coroutine"
-- Yields to the driver before the agent is even declared.
coroutine.yield({}, "done", "\x01")
agent = { resolve = function() return true end }
