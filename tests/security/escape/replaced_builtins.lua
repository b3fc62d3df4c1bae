-- expect: ok value={"list": [1, "two", {"k": "v"}], "text": "x"}
-- Replaces every global function before the engine encodes the answer and serves host calls.
agent = {}
function agent.resolve(args, config, context)
    local poison = function() error("the engine called a replaced function", 0) end
    for _, library in ipairs({ string, table, math, utf8, coroutine, json, os }) do
        for name, value in pairs(library) do
            if type(value) == "function" then library[name] = poison end
        end
    end
    local next, type = next, type
    for name, value in next, _G do
        if type(value) == "function" then _G[name] = poison end
    end
    context.search("deploy")
    return { list = { 1, "two", { k = "v" } }, text = "x" }
end
