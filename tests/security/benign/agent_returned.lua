-- expect: ok value="returned"
-- Returns the agent from the chunk instead of setting a global.
local M = {}
function M.resolve(args, config, context)
    return "returned"
end
return M
