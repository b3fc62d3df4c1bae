-- expect: ok value="went on"
-- Catches the refusal and goes on below the bound: allowed.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(string.rep, "x", 100000000)
    if ok or why ~= "not enough memory" then return tostring(why) end
    return "went on"
end
