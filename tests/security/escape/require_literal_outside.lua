-- expect: script_error message="main.lua:5: no" files={"main.lua": "error('never')"}
-- Writes out names that leave its package: nothing is read, and the calls fail as any others.
agent = {}
function agent.resolve(args, config, context)
    if pcall(function() return require("../../etc/passwd") end) then return "read" end
    if pcall(function() return require "/etc/passwd" end) then return "read" end
    if pcall(function() return require [[./main]] end) then return "read" end
    error("main.lua:5: no", 0)
end
