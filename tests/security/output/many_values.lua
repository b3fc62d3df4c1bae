-- expect: ok value=1
-- Returns several values: the first is the answer.
agent = {}
function agent.resolve(args, config, context)
    return 1, 2, print
end
