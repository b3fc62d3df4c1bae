-- expect: ok value={"\ufffd\ufffd": 1} log~"value has a key that is not UTF-8"
-- Returns a table with a key that is no text.
agent = {}
function agent.resolve(args, config, context)
    return { ["\xff\xff"] = 1 }
end
