-- expect: ok value=true runs=2
-- Writes to json.null, changes its metatable, or replaces it for the engine.
agent = {}
function agent.resolve(args, config, context)
    if rawget(json.null, "x") ~= nil then return "the change survived" end
    local set = pcall(function() json.null.x = 1 end)
    local meta = pcall(setmetatable, json.null, {})
    rawset(json.null, "x", 1)
    local shown = json.encode({ json.null })
    json.null = nil
    return not set and not meta and shown == "[null]"
end
