-- expect: ok value={"real": [1, 2]}
-- Returns tables whose metamethods lie about what they hold: the engine looks at the tables alone.
agent = {}
function agent.resolve(args, config, context)
    local lie = {
        __index = function() return "lie" end,
        __len = function() return 1000000 end,
        __pairs = function() return function() return "lie", "lie" end end,
        __name = "lie",
        __tostring = function() error("asked for a text") end,
        __eq = function() return true end,
        __metatable = "lie",
    }
    return setmetatable({ real = setmetatable({ 1, 2 }, lie) }, lie)
end
