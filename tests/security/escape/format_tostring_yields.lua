-- expect: ok value=true
-- Yields, calls the host and fails inside the __tostring that string.format and print call.
agent = {}
function agent.resolve(args, config, context)
    local shy = setmetatable({}, { __tostring = function() return context.search("deploy")[1].title end })
    local a = pcall(string.format, "%s", shy)
    local b = pcall(tostring, shy)
    local c = coroutine.wrap(function() return (pcall(string.format, "%s", shy)) end)()
    local bad = setmetatable({}, { __tostring = function() error("no") end })
    local d = pcall(print, bad)
    return not a and not b and not c and not d
end
