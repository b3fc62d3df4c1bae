-- expect: cpu_limit
-- Parses long numerals.
agent = {}
function agent.resolve(args, config, context)
    local text = "0x" .. ("f"):rep(190)
    local decimal = ("9"):rep(190) .. "e-5"
    while true do tonumber(text) tonumber(decimal) tonumber(("z"):rep(50), 36) end
end
