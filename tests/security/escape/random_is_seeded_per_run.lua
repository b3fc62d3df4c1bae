-- expect: ok value=true
-- Checks that a seed of its own gives the same numbers and that the default seed is not a constant.
agent = {}
function agent.resolve(args, config, context)
    math.randomseed()
    local first = { math.random(0), math.random(0) }
    math.randomseed()
    local second = { math.random(0), math.random(0) }
    math.randomseed(7)
    local a = math.random(0)
    math.randomseed(7)
    return a == math.random(0) and (first[1] ~= second[1] or first[2] ~= second[2])
end
