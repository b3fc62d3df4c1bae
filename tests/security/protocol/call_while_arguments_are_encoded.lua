-- expect: ok value=[true, 0] calls=1
-- Calls the host from an __eq of an argument, which would enter the encoder a second time.
agent = {}
function agent.resolve(args, config, context)
    local entered = 0
    local sneaky = setmetatable({}, { __eq = function()
        entered = entered + 1
        return #context.sources() == 0
    end })
    sneaky.query = "deploy"
    return { #context.search(sneaky) > 0, entered }
end
