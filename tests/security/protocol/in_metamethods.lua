-- expect: ok value={"call": true, "index": true, "tostring": false}
-- Calls the host inside metamethods: those that Lua itself runs can yield, those that C runs cannot.
agent = {}
function agent.resolve(args, config, context)
    local t = setmetatable({}, {
        __index = function() return #context.search("deploy") > 0 end,
        __call = function() return #context.search("deploy") > 0 end,
        __tostring = function() return #context.search("deploy") > 0 and "yes" or "no" end,
    })
    return { index = t.anything, call = t(), tostring = (pcall(tostring, t)) }
end
