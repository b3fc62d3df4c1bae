-- The least that an agent can be.

agent = { name = "bench-noop", description = "Does nothing" }

function agent.resolve()
    return { system = "nothing" }
end

return agent
