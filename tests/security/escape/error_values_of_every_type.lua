-- expect: ok value=["boolean", "function", "nil", "number", "string", "table", "thread"]
-- Raises one value of every type and catches it unchanged.
agent = {}
function agent.resolve(args, config, context)
    local kinds = {}
    for _, make in ipairs({
        function() return true end, function() return print end, function() return nil end, function() return 1.5 end,
        function() return "text" end, function() return {} end, function() return coroutine.create(print) end,
    }) do
        local value = make()
        local ok, caught = pcall(error, value, 0)
        if ok or not rawequal(caught, value) then return false end
        kinds[#kinds + 1] = type(caught)
    end
    return kinds
end
