-- expect: ok value=["table", "function", "function", "thread", "table", "null"]
-- Reads addresses with tostring, which would tell where the process's memory lies.
agent = {}
function agent.resolve(args, config, context)
    return {
        tostring({}), tostring(print), tostring(function() end), tostring(coroutine.create(print)),
        tostring(context), tostring(json.null),
    }
end
