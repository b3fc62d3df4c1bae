-- expect: ok value={"changed": false, "seen": "locked"}
-- Checks that __metatable protects the script's own tables, as the language says.
agent = {}
function agent.resolve(args, config, context)
    local t = setmetatable({}, { __metatable = "locked" })
    return { seen = getmetatable(t), changed = (pcall(setmetatable, t, {})) }
end
