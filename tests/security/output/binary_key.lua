-- expect: script_error message~"has a key that is a string that is not UTF-8"
-- Returns a table with a key that is no text.
agent = {}
function agent.resolve(args, config, context)
    return { ["\xff\xff"] = 1 }
end
