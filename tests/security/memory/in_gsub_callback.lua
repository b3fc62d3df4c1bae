-- expect: memory_limit
-- Fills the memory inside a callback of gsub.
agent = {}
function agent.resolve(args, config, context)
    return (("x"):gsub("x", function() return string.rep("x", 100000000) end))
end
