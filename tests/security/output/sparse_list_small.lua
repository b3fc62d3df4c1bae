-- expect: ok value=[1, null, null, 4]
-- Returns a list with few holes, which are nulls.
agent = {}
function agent.resolve(args, config, context)
    return { 1, nil, nil, 4 }
end
