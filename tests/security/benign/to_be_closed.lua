-- expect: ok value=["open a", "open b", "close b", "close a", "closed by error"]
-- Closes resources in the right order, also when an error leaves the block.
agent = {}
function agent.resolve(args, config, context)
    local events = {}
    local function resource(name)
        events[#events + 1] = "open " .. name
        return setmetatable({}, { __close = function(_, why)
            events[#events + 1] = why and "closed by error" or "close " .. name
        end })
    end
    do
        local a <close> = resource("a")
        local b <close> = resource("b")
    end
    local quiet = setmetatable({}, { __close = function() events[#events + 1] = "closed by error" end })
    pcall(function()
        local c <close> = quiet
        error("leave")
    end)
    return events
end
