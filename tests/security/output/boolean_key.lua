-- expect: script_error message~"a key that is neither a string nor a list position"
-- Returns a table with a boolean as a key.
agent = {}
function agent.resolve(args, config, context)
    return { [true] = 1 }
end
