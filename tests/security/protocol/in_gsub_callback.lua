-- expect: ok value=[false, true]
-- Calls the host inside a callback of gsub, where nothing can be yielded: an error that can be caught.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(string.gsub, "x", "x", function() return context.search("deploy")[1].title end)
    return { ok, why:find("cannot be called", 1, true) ~= nil }
end
