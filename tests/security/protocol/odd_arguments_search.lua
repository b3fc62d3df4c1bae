-- expect: ok value=true
-- Calls search with a value of every type in every place: each ends in an answer or an error that can be caught.
agent = {}
function agent.resolve(args, config, context)
    local values = { true, 1, 1.5, -1, 0 / 0, "text", "", "\xff\xfe", {}, { 1 }, { query = 1 }, { [1.5] = 1 }, print,
        coroutine.create(print), json.null, math.maxinteger, ("x"):rep(70000) }
    local calls = 0
    for i = 0, #values do
        local v = values[i]
        pcall(context.search, v)
        pcall(context.search, "deploy", v)
        pcall(context.search, { query = "deploy", limit = v })
        pcall(context.search, { query = v, mode = v, source = v, since = v, filters = v })
        pcall(context.search, "deploy", { filters = { source = v, since = v } })
        calls = calls + 5
    end
    return calls == 90
end
