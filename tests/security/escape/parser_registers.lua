-- expect: script_error message~"registers" fill={"<ARGS>": ["nil, ", 300]}
-- Calls with three hundred arguments, more than one instruction can address.
agent = {}
function agent.resolve(args, config, context)
    return select("#", <ARGS> nil)
end
