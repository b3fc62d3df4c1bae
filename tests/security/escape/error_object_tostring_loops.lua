-- expect: cpu_limit
-- Fails with an object whose __tostring never returns, so that describing the error takes for ever.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() while true do end end }))
end
