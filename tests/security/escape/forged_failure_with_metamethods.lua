-- expect: script_error message="(the error is a table value)"
-- Raises a table whose __eq and __index claim to be whatever is asked for.
agent = {}
function agent.resolve(args, config, context)
    local yes = { __eq = function() return true end, __index = function() return "memory_limit" end }
    error(setmetatable({ setmetatable({}, yes), "memory_limit", "forged" }, yes), 0)
end
