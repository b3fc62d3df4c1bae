-- expect: script_error message~"jumps into the scope of local"
-- Jumps into the scope of a local variable.
agent = {}
function agent.resolve(args, config, context)
    goto inside
    local x = 1
    ::inside::
    return x
end
