-- expect: ok value=[3, "assertion failed!", "with a text", "table"]
-- Asserts with and without a text and passes values through.
agent = {}
function agent.resolve(args, config, context)
    local _, plain = pcall(assert, false)
    local _, text = pcall(assert, nil, "with a text")
    local _, object = pcall(assert, false, { code = 1 })
    return { select("#", assert(1, 2, 3)), plain, text, type(object) }
end
