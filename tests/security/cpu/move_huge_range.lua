-- expect: cpu_limit
-- Moves 2^40 absent items from one table to another.
agent = {}
function agent.resolve(args, config, context)
    table.move({}, 1, 1 << 40, 2, {})
end
