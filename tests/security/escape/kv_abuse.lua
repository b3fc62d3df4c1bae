-- expect: ok value=true
-- Calls kv without a grant and with what it does not take, inside callbacks and metamethods; then replaces its functions.
agent = {}
function agent.resolve(args, config, context)
    local cycle = {}
    cycle.cycle = cycle
    local bad = { 1, true, {}, cycle, print, ("k"):rep(10240), "%_\0", "\xff", setmetatable({}, { __index = error, __tostring = error }) }
    for _, f in pairs(kv) do
        for _, v in ipairs(bad) do
            if pcall(f, v) or pcall(f, "a", v) or pcall(f, "a", v, v) or pcall(f, "a", 0 / 0, { ttl_s = 1 / 0, if_version = v }) then
                return false
            end
        end
        if pcall(f) or pcall(table.sort, { 2, 1 }, f) or pcall(string.gsub, "aa", "a", f) then return false end
    end
    kv.get = function() return "mine" end
    return kv.get() == "mine" and not pcall(kv.set, "a", 1) and not pcall(setmetatable, kv, {})
end
