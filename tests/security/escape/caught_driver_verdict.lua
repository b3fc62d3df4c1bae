-- expect: ok value=true
-- Tries to catch the driver's verdict about an answer: the check happens after the script has returned.
agent = {}
function agent.resolve(args, config, context)
    local ok, answer = pcall(function() return { [1.5] = "bad" } end)
    return ok and type(answer) == "table"
end
