-- expect: script_error message~"a key that is neither a string nor a list position"
-- Returns a table with a fraction as a key.
agent = {}
function agent.resolve(args, config, context)
    return { [1.5] = 1 }
end
