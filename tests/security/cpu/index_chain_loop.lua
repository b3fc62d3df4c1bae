-- expect: ok value=true
-- Makes a table its own __index, which the interpreter stops as a loop.
agent = {}
function agent.resolve(args, config, context)
    local a, b = {}, {}
    setmetatable(a, { __index = b })
    setmetatable(b, { __index = a })
    local ok, why = pcall(function() return a.missing end)
    return not ok and why:find("loop") ~= nil
end
