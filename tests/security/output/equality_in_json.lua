-- expect: ok value="[{\"a\":1}]"
-- Encodes, as JSON, a table whose __eq claims that it is json.null.
agent = {}
function agent.resolve(args, config, context)
    return json.encode({ setmetatable({ a = 1 }, { __eq = function() return true end }) })
end
