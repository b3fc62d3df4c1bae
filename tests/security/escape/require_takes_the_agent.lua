-- expect: ok value="mine" files={"a.lua": "agent = { resolve = function() return 'taken' end } error('late')", "b.lua": "agent = { resolve = function() return 'taken' end } setmetatable(_G, { __newindex = function() end, __index = function() return agent end })"}
-- Requires files that declare another agent, one of which fails afterwards.
agent = {}
function agent.resolve(args, config, context) return "mine" end
pcall(require, "./a")
if false then require("./a") end
require("./b")
