-- expect: ok value=[false, "handled: boom", true, 3]
-- Handles errors with xpcall and passes arguments.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = xpcall(function() error("boom", 0) end, function(e) return "handled: " .. e end)
    local fine, sum = xpcall(function(a, b) return a + b end, print, 1, 2)
    return { ok, why, fine, sum }
end
