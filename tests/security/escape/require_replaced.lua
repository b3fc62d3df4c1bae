-- expect: ok value=["first", "mine", "first"] files={"a.lua": "local first = require require = function() return 'mine' end string.sub = nil rawset = nil return first", "b.lua": "return 'first'"}
-- Requires a file that replaces `require` itself and what it might be made of.
agent = {}
function agent.resolve(args, config, context)
    if false then require("./b") end
    local first = require("./a")
    return { first("./b"), require("./b"), first("./b") }
end
