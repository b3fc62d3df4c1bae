-- expect: ok value="asked the host" calls=1
-- Gives its configuration an __index that calls the host.
agent = {}
function agent.resolve(args, config, context)
    setmetatable(config, { __index = function() return #context.sources() == 1 and "asked the host" end })
    return config.missing
end
