-- expect: timeout limits={timeout_s=0.4, cpu_s=10} calls=1
-- Waits for a host call that is never answered: the deadline counts while the host works, CPU time does not.
agent = {}
function agent.resolve(args, config, context)
    context.search("stall")
end
