-- expect: script_error message~"context.search cannot be called" calls=0
-- Calls the host inside a comparator and does not catch the refusal.
agent = {}
function agent.resolve(args, config, context)
    table.sort({ 3, 2, 1 }, function(a, b) return a < #context.search("deploy") end)
end
