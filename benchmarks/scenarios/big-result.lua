-- As many messages of 8 KiB as `messages` says.

agent = { name = "bench-big-result", description = "Answers at length" }

function agent.resolve(args, config)
    local text = string.rep("All work and no play. ", 8192 // 22)
    local messages = {}
    for i = 1, config.messages do
        messages[i] = { role = "assistant", content = text }
    end
    return { system = "at length", messages = messages }
end

return agent
