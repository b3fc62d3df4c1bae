-- expect: ok value=[5, true]
-- Gives a block an environment of its own.
agent = {}
function agent.resolve(args, config, context)
    local sandbox = { math = math }
    do
        local _ENV = sandbox
        x = math.floor(5.5)
    end
    return { sandbox.x, x == nil }
end
