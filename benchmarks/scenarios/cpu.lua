-- Arithmetic in a loop.

agent = { name = "bench-cpu", description = "Computes" }

function agent.resolve(args, config)
    local sum = 0
    for i = 1, config.rounds do
        sum = (sum * 31 + i) % 1000003
    end
    return { system = "the sum is " .. sum }
end

return agent
