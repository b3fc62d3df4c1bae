-- Five ways to use up a machine; `way` in the configuration says which.

local ways = {}

function ways.spin()
    while true do end
end

-- Whatever stops it is caught, and it goes on.
function ways.catch()
    while true do
        pcall(ways.spin)
    end
end

function ways.memory()
    local kept = {}
    while true do
        kept[#kept + 1] = string.rep("x", 100000) .. #kept
    end
end

function ways.output()
    return { system = string.rep("x", 1000000) }
end

function ways.calls(context)
    while true do
        context.search(" ")
    end
end

agent = { name = "bench-hostile", description = "Means harm" }

function agent.resolve(args, config, context)
    return ways[config.way](context)
end

return agent
