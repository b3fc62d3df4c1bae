-- expect: script_error message~"field 'dump'"
-- Takes the bytecode of a function, which a forged copy could be made from.
agent = {}
function agent.resolve(args, config, context)
    return string.dump(agent.resolve)
end
