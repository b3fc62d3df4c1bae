-- expect: ok value={"depth": 3, "inner": "[1]"}
-- Enters json.decode and json.encode again while they run, through metamethods and options.
agent = {}
function agent.resolve(args, config, context)
    local inner
    local sneaky = setmetatable({ 1, 2, 3 }, {
        __index = function() inner = json.encode({ 1 }) end,
        __len = function() return 1000 end,
        __pairs = function() error("iterated by a metamethod") end,
    })
    local text = json.encode(sneaky)
    local options = setmetatable({}, { __index = function() inner = "through __index" end })
    local value = json.decode("[[[null]]]", options)
    return { inner = json.encode({ 1 }), depth = text == "[1,2,3]" and #value == 1 and 3 or 0 }
end
