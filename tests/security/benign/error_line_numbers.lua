-- expect: script_error message="corpus:7: attempt to perform arithmetic on a nil value (field 'missing')" traceback~"corpus:7:"
-- Fails by mistake: the message names the exact line and what was nil.
agent = {}
function agent.resolve(args, config, context)
    local t = {}

    return t.missing + 1
end
