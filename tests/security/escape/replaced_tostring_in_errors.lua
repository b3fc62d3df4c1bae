-- expect: script_error message="plain"
-- Replaces tostring, pcall and error and then fails with an error object.
agent = {}
function agent.resolve(args, config, context)
    local raise = error
    tostring = function() return "forged" end
    pcall = function() return true, "forged" end
    error = nil
    string.format = function() return "forged" end
    raise(setmetatable({}, { __tostring = function() return "plain" end }))
end
