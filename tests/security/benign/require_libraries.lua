-- expect: ok value={"heading": "# On Call", "same": true} files={"lib/text.lua": "local t = {} function t.heading(s) return '# ' .. text.title(s) end return t", "shared.lua": "return require('./lib/text')"}
-- Uses files of its package, one of them by way of another.
local text_of = require("./lib/text")
agent = {}
function agent.resolve(args, config, context)
    return { heading = text_of.heading("on call"), same = require("./shared") == text_of }
end
