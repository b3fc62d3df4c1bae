-- expect: script_error message~"yyyyyyyy"
-- Fails with an object whose __tostring gives a text of 500 kB: what is shown is bounded.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function() return ("y"):rep(500000) end }))
end
