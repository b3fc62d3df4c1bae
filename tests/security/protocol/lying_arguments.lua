-- expect: ok value=true calls=1
-- Calls the host with a table whose metamethods lie: the engine looks at the table alone.
agent = {}
function agent.resolve(args, config, context)
    local arguments = setmetatable({ query = "deploy" }, {
        __index = function() return "lie" end,
        __pairs = function() error("iterated by a metamethod") end,
        __len = function() return 1 << 40 end,
    })
    return #context.search(arguments) > 0
end
