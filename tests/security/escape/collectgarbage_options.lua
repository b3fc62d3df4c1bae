-- expect: ok value=true
-- Stops or retunes the collector, or asks it for anything but the count.
agent = {}
function agent.resolve(args, config, context)
    for _, option in ipairs({ "stop", "restart", "step", "isrunning", "generational", "incremental", "setpause" }) do
        local answer = collectgarbage(option, 0)
        if answer ~= 0 then return option .. " answered " .. tostring(answer) end
    end
    return type(collectgarbage("count")) == "number" and collectgarbage() == 0
end
