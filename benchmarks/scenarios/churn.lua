-- An agent of which there is always a newer version; `version` is what the request that published it was given.
agent = { description = "Says which version answers" }

function agent.resolve(args, config, context)
    return { system = "This is version " .. config.version .. "." }
end
