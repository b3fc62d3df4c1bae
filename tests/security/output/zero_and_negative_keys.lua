-- expect: script_error message~"a key that is neither a string nor a list position"
-- Returns a list that begins at zero.
agent = {}
function agent.resolve(args, config, context)
    return { [0] = "zero", "one" }
end
