-- expect: ok value=true
-- Loads a library through require, package.loaded, package.loadlib or the searchers.
agent = {}
function agent.resolve(args, config, context)
    if package ~= nil or module ~= nil then return "there" end
    for _, f in ipairs({
        function() return require("os") end,
        function() return package.loaded.io end,
        function() return package.loadlib("libc.so.6", "*") end,
        function() return package.searchers[2]("os") end,
    }) do
        if pcall(f) then return "worked" end
    end
    return true
end
