-- expect: script_error message~"NaN"
-- Returns NaN.
agent = {}
function agent.resolve(args, config, context)
    return { score = 0 / 0 }
end
