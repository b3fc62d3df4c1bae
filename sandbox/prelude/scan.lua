-- What a connector's scan has in `context`: items go to the host one by one, which answers when there is room for more.
local x = ...
local host_call, error, type, rawget, max_output = x.host_call, x.error, x.type, x.rawget, x.max_output
-- Room for the other fields of an item beside its body.
local FIELDS = max_output < 262144 and max_output // 2 or 131072

local function check(name, given, expected)
    if type(given) == "table" and type(rawget(given, "emit")) == "function" then
        error("context." .. name .. ": call it with a dot, context." .. name .. "(...), not with a colon", 3)
    end
    if expected and type(given) ~= expected then
        error("context." .. name .. ": an item must be a table with named fields, got " .. type(given), 3)
    end
end

return {
    emit = function(item, checkpoint)
        check("emit", item, "table")
        local body = rawget(item, "body")
        if type(body) == "string" and #body + FIELDS > max_output then      -- not sent: it cannot be stored
            local found = { source_id = rawget(item, "source_id") }
            host_call("context.emit", { item = found, checkpoint = checkpoint, size = #body })
            return
        end
        host_call("context.emit", { item = item, checkpoint = checkpoint })
    end,
    deleted = function(source_id)
        check("deleted", source_id)
        host_call("context.deleted", { source_id = source_id })
    end,
}
