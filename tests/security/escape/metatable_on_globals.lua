-- expect: ok value={"missing": "made up: colour", "real": true}
-- Puts a metatable with __index and __newindex on the environment; the driver must not run through it.
agent = {}
setmetatable(_G, {
    __index = function(_, name) return "made up: " .. name end,
    __newindex = function() error("no new globals") end,
})
function agent.resolve(args, config, context)
    return { missing = colour, real = type(context.search) == "function" }
end
