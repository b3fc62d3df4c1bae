-- expect: script_error message~"a list with too many holes"
-- Returns a list with one item at position 2^40.
agent = {}
function agent.resolve(args, config, context)
    return { [1 << 40] = 1 }
end
