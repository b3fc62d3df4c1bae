-- expect: ok value=[false, 1000]
-- Fills the memory, catches the refusal, lets go of everything and works on.
agent = {}
function agent.resolve(args, config, context)
    local ok = pcall(function()
        local t = {}
        while true do t[#t + 1] = { #t } end
    end)
    local t = {}
    for i = 1, 1000 do t[i] = ("x"):rep(1000) end
    return { ok, #t }
end
