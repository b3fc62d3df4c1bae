-- expect: ok value=true
-- Provokes the messages in which interpreters have shown addresses, and searches them.
agent = {}
function agent.resolve(args, config, context)
    local provoked = {
        function() return {} .. {} end,
        function() return {} < {} end,
        function() return #print end,
        function() local t = setmetatable({}, { __name = "T" }) return t + 1 end,
        function() return ("x"):rep({}) end,
        function() error({}) end,
        function() error(print) end,
        function() return table.concat({ {} }) end,
        function() for i = 1, {} do end end,
        function() return coroutine.resume({}) end,
        function() return setmetatable({}, 1) end,
        function() return ipairs() end,
        function() return string.format("%d", {}) end,
        function() return string.format("%d", "x") end,
        function() return json.encode(print) end,
        function() return context.get(print) end,
        function() return utf8.char({}) end,
        function() return next({}, {}) end,
    }
    for i, f in ipairs(provoked) do
        local _, why = pcall(f)
        if tostring(why):find("0x%x%x%x%x") then return { i, tostring(why) } end
    end
    return true
end
