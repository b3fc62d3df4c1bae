-- expect: ok value=true
-- Seeds Lua's generator and replaces its functions, to make two identifiers alike.
agent = {}
function agent.resolve(args, config, context)
    local seen = {}
    math.random, os.time = function() return 4 end, function() return 0 end
    for i = 1, 100 do
        math.randomseed(42)
        local id = uuid.v4()
        if seen[id] or #id ~= 36 then return id end
        seen[id] = true
    end
    return uuid.v7() < uuid.v7()
end
