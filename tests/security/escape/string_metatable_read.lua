-- expect: ok value=true
-- Gets hold of the metatable that all strings share, which the engine's own code uses, too.
agent = {}
function agent.resolve(args, config, context)
    local meta = getmetatable("")
    return meta == false or meta == nil
end
