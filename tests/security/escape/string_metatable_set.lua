-- expect: ok value=true
-- Gives all strings another metatable.
agent = {}
function agent.resolve(args, config, context)
    local ok = pcall(setmetatable, "", { __index = function() return "mine" end })
    return not ok and ("abc"):upper() == "ABC"
end
