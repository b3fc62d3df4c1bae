-- expect: timeout limits={timeout_s=0.4, cpu_s=10}
-- Loops without end where the deadline comes before the CPU budget.
agent = {}
function agent.resolve(args, config, context)
    local n = 0
    repeat n = n + 1 until false
end
