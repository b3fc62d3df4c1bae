-- expect: ok value=[0, true]
-- Reads the arguments of the chunk itself, where hosts sometimes leave objects.
local count = select("#", ...)
agent = {}
function agent.resolve(args, config, context, ...)
    return { count, select("#", ...) == 0 }
end
