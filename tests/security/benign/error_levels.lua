-- expect: ok value=["corpus:5: here", "corpus:11: at the caller", "no place", "corpus:8: at the caller"]
-- Raises errors that name the line of the error, of the caller, or none.
agent = {}
local function check(level, text)
    error(text, level)
end
local function checked()
    check(2, "at the caller")
end
function agent.resolve(args, config, context)
    local a = function() check(2, "at the caller") end
    local _, here = pcall(check, 1, "here")
    local _, caller = pcall(a)
    local _, none = pcall(check, 0, "no place")
    local _, inside = pcall(function()
        checked()
    end)
    return { here, caller, none, inside }
end
