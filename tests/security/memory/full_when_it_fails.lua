-- expect: script_error|memory_limit
-- Fails with an error object while the memory is full, so that describing the error needs memory, too.
agent = {}
keep = {}
function agent.resolve(args, config, context)
    local object = setmetatable({}, { __tostring = function() return ("described "):rep(3) end })
    local size = 1 << 20
    while size > 16 do
        if not pcall(function() keep[#keep + 1] = ("x"):rep(size) .. #keep end) then size = size // 2 end
    end
    error(object)
end
