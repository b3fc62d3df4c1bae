-- expect: ok value="fresh" runs=3
-- Leaves a global for the next run to find.
agent = {}
function agent.resolve(args, config, context)
    if left_behind then return "found " .. left_behind end
    left_behind = "something"
    _G.left_behind = "something"
    return "fresh"
end
