-- expect: script_error message~"attempt to index a nil value (global 'io')"
-- Opens a file of the host.
agent = {}
function agent.resolve(args, config, context)
    local f = io.open("/etc/passwd", "r")
    return f:read("a")
end
