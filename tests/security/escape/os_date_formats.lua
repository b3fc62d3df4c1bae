-- expect: ok value=true
-- Gives os.date odd, unknown and oversized formats and extreme times.
agent = {}
function agent.resolve(args, config, context)
    for _, fmt in ipairs({ "%", "%E", "%Ez", "%O", "%k", "%5Y", "%\0", "%!", ("%Y"):rep(200) }) do
        if pcall(os.date, fmt) then return fmt end
    end
    for _, time in ipairs({ math.maxinteger, math.mininteger, 1e300, 0 / 0 }) do
        if pcall(os.date, "%Y", time) then return tostring(time) end
    end
    return os.date("!%H:%M", 0) == "00:00" and os.date("*t", 0).year == 1970
end
