-- expect: cpu_limit
-- Raises and catches errors with growing tracebacks without end.
agent = {}
function agent.resolve(args, config, context)
    local why = "x"
    while true do
        local _, e = pcall(error, why, 2)
        why = #e < 1000 and e .. "y" or "x"
    end
end
