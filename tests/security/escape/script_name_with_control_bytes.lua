-- expect: script_error message~"failed" name="bad\u0000name\n\u001b[31m\u202e"
-- Is known under a name that holds NUL, a line break and terminal codes.
agent = {}
function agent.resolve(args, config, context)
    error("failed")
end
