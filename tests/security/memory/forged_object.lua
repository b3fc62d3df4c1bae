-- expect: script_error message="not enough memory"
-- Fails with an object that describes itself with the allocator's text.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() return "not enough memory" end }))
end
