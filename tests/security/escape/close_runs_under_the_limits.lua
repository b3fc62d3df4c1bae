-- expect: script_error message="boom"
-- Uses a to-be-closed variable to replace the error, caught and uncaught.
agent = {}
local function fail()
    local guard <close> = setmetatable({}, { __close = function(_, e) error("closed with: " .. tostring(e), 0) end })
    error("boom", 0)
end
function agent.resolve(args, config, context)
    local _, why = pcall(fail)
    if why ~= "closed with: boom" then return why end
    -- Uncaught, the run ends where the error was raised: nothing of the script goes on.
    fail()
end
