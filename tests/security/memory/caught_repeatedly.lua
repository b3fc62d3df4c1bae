-- expect: cpu_limit
-- Catches the refusal for ever.
agent = {}
function agent.resolve(args, config, context)
    local keep = {}
    while true do
        pcall(function()
            while true do keep[#keep + 1] = ("x"):rep(1000) .. #keep end
        end)
    end
end
