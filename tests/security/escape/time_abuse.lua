-- expect: ok value=true
-- Feeds the time library values of every type, times that no calendar has, and zones that are paths.
agent = {}
function agent.resolve(args, config, context)
    for name, f in pairs(time) do
        if name ~= "now" then
            for _, v in ipairs({ true, {}, print, 0/0, 1/0, -1/0, 1e300, math.maxinteger, math.mininteger }) do
                if pcall(f, v, v, v) then return name end
            end
            if pcall(f) then return name end
        end
    end
    for _, zone in ipairs({ "../../etc/passwd", "/etc/localtime", "", "\0", "Europe", "+99:99", ("x"):rep(100000) }) do
        local ok, problem = pcall(time.format, 0, zone)
        if ok or #problem > 300 then return zone end
    end
    return time.format(-62135596800) == "0001-01-01T00:00:00Z" and not pcall(time.add, 0, { years = math.maxinteger })
end
