-- expect: ok value=0
-- Reads what math.randomseed returns: the real one gives back an address as a part of the seed.
agent = {}
function agent.resolve(args, config, context)
    return select("#", math.randomseed()) + select("#", math.randomseed(42)) + select("#", math.randomseed(1, 2))
end
