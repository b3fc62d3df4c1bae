-- expect: cpu_limit
-- Never returns from the __tostring that print calls.
agent = {}
function agent.resolve(args, config, context)
    print(setmetatable({}, { __tostring = function() while true do end end }))
end
