-- expect: ok value=true
-- Feeds regular expressions values that are no strings, and a replacement that calls back into them.
agent = {}
function agent.resolve(args, config, context)
    for _, f in pairs(regex) do
        for _, v in ipairs({ 1, true, {}, print, setmetatable({}, { __tostring = error }) }) do
            if pcall(f, v, v, v) then return false end
            if f ~= regex.split and pcall(f, "a", v, v) then return false end
        end
        if pcall(f) then return false end
    end
    local inner = regex.gsub("ab", ".", function(c) return (regex.gsub(c, "a", function() return regex.match("x9", "[0-9]") end)) end)
    return inner == "9b"
end
