-- expect: script_error message="not enough memory (raised by the script)"
-- Catches a true refusal and raises its text again: what is left is an error of the script.
agent = {}
function agent.resolve(args, config, context)
    local _, why = pcall(string.rep, "x", 100000000)
    error(why, 0)
end
