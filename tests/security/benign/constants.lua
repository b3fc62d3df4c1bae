-- expect: ok value=[10, 20]
-- Uses constant locals.
agent = {}
local LIMIT <const> = 10
function agent.resolve(args, config, context)
    local double <const> = LIMIT * 2
    return { LIMIT, double }
end
