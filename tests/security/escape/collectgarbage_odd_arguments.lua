-- expect: ok value=true
-- Passes values to collectgarbage that are no option at all.
agent = {}
function agent.resolve(args, config, context)
    local lying = setmetatable({}, { __eq = function() return true end, __tostring = function() return "stop" end })
    return collectgarbage(lying) == 0 and collectgarbage({}) == 0 and collectgarbage(1 / 0) == 0
        and collectgarbage("count\0stop") == 0 and collectgarbage(nil) == 0
end
