-- expect: ok value=[900000, false]
-- Passes nine hundred thousand arguments, then more than the stack can hold.
agent = {}
function agent.resolve(args, config, context)
    local many = select("#", table.unpack({}, 1, 900000))
    return { many, (pcall(function() return select("#", table.unpack({}, 1, 1100000)) end)) }
end
