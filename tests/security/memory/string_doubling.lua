-- expect: memory_limit
-- Doubles a text for ever.
agent = {}
function agent.resolve(args, config, context)
    local s = "x"
    while true do s = s .. s end
end
