-- `json.schema`: what the host found wrong, as a function that validates says it.
local host_call = (...).host_call

return {
    schema = function(value, schema)
        local errors = host_call("json.schema", { value = value, schema = schema })
        if errors[1] then return nil, errors end
        return true
    end,
}
