-- expect: memory_limit|cpu_limit limits={cpu_s=2}
-- Tries again what fails for want of memory.
agent = {}
function agent.resolve(args, config, context)
    return retry(function() return ("x"):rep(1 << 30) end, { tries = 100, base_s = 0 })
end
