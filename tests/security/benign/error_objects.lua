-- expect: ok value={"code": 404, "kind": "table", "nested": "outer: inner", "same": true}
-- Raises tables, looks at them and wraps errors.
agent = {}
function agent.resolve(args, config, context)
    local raised = { code = 404 }
    local _, caught = pcall(error, raised)
    local _, nested = pcall(function()
        local ok, why = pcall(error, "inner", 0)
        if not ok then error("outer: " .. why, 0) end
    end)
    return { kind = type(caught), code = caught.code, same = caught == raised, nested = nested }
end
