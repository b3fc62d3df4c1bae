-- expect: ok value="global"
-- Sets the global and returns another table: the global is the agent.
agent = { resolve = function() return "global" end }
return { resolve = function() return "returned" end }
