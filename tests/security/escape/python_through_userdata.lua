-- expect: ok value={"functions": true, "userdata": 0}
-- Walks every value that can be reached by fields, keys and metatables and counts host objects.
agent = {}
function agent.resolve(args, config, context)
    local seen, userdata, functions = {}, 0, 0
    local todo = { _G, _ENV, args, config, context, "", getmetatable("") or {}, json.null }
    while #todo > 0 do
        local v = table.remove(todo)
        local kind = type(v)
        if kind == "userdata" then userdata = userdata + 1 end
        if kind == "function" and not seen[v] then
            seen[v] = true
            functions = functions + 1
        end
        if kind == "table" and not seen[v] then
            seen[v] = true
            for key, value in next, v do
                todo[#todo + 1] = key
                todo[#todo + 1] = value
            end
            todo[#todo + 1] = getmetatable(v)
        end
    end
    return { userdata = userdata, functions = functions > 50 }
end
