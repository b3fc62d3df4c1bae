-- `context.team`: the tools of the agent's turn in its team. Each takes one table of named fields, and returns one.
local x = ...
local host_call, error, type, next = x.host_call, x.error, x.type, x.next

local names = {
    "send_message", "broadcast", "check_inbox", "spawn_agent", "inspect_agent", "list_children", "complete", "poke",
    "terminate_agent", "remind_me", "cancel_reminder", "read_file", "write_file", "list_files",
}

local function tool(name)
    name = "context.team." .. name
    return function(given)
        if given == nil then given = {} end
        if type(given) ~= "table" then
            error(name .. ": a table of named fields is expected, got " .. type(given), 2)
        end
        local answer = host_call(name, { given = given })
        return answer
    end
end

local team = {}
for _, name in next, names do team[name] = tool(name) end
return team
