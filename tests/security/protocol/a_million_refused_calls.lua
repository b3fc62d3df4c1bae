-- expect: call_limit grants=[] limits={cpu_s=3}
-- Calls the host a million times without being allowed to: refused calls count, too.
agent = {}
function agent.resolve(args, config, context)
    for _ = 1, 1000000 do pcall(context.sources) end
end
