-- expect: ok value=true
-- Asks string.format for a value whose __name or __tostring is wrong or changes between two looks.
agent = {}
function agent.resolve(args, config, context)
    local looks = 0
    local meta = {}
    meta.__name = "N"
    meta.__tostring = function(self)
        looks = looks + 1
        setmetatable(self, { __name = "after" })
        return "shown"
    end
    local text = string.format("%s %s", setmetatable({}, meta), setmetatable({}, { __name = "Other" }))
    local ok, why = pcall(string.format, "%s", setmetatable({}, { __tostring = function() return {} end }))
    return not text:find("0x") and not ok and not tostring(why):find("0x")
end
