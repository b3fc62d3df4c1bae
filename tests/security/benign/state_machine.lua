-- expect: ok value=["open", "closed", "open"]
-- Keeps a machine of states as a table of functions.
agent = {}
local states = {}
function states.open(event) return event == "close" and "closed" or "open" end
function states.closed(event) return event == "open" and "open" or "closed" end
function agent.resolve(args, config, context)
    local seen, state = {}, "open"
    for _, event in ipairs({ "wait", "close", "open" }) do
        state = states[state](event)
        seen[#seen + 1] = state
    end
    return seen
end
