-- expect: ok value=[0, 2, ["set b", "get a"], false]
-- Uses tables with defaults, tables that note what is done to them, and tables that cannot be changed.
agent = {}
function agent.resolve(args, config, context)
    local counts = setmetatable({}, { __index = function() return 0 end })
    counts.x = counts.x + 2
    local noted, real = {}, { a = 1 }
    local proxy = setmetatable({}, {
        __index = function(_, key) noted[#noted + 1] = "get " .. key return real[key] end,
        __newindex = function(_, key, value) noted[#noted + 1] = "set " .. key real[key] = value end,
    })
    proxy.b = proxy.missing and 1 or 2
    noted = {}
    proxy.b = 3
    local _ = proxy.a
    local constant = setmetatable({}, { __newindex = function() error("constant") end })
    return { counts.y, counts.x, noted, (pcall(function() constant.x = 1 end)) }
end
