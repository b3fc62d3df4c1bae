-- expect: script_error message~"attempt to index a nil value (global 'context')" calls=0
-- Calls the host before anybody called the agent: there is no context yet.
local found = context.search("deploy")
agent = { resolve = function() return found end }
