-- expect: ok value=true
-- Gives string.format fewer arguments than it needs, which must not read what lies beside them.
agent = {}
function agent.resolve(args, config, context)
    for _, fmt in ipairs({ "%s", "%d %d", "%s%s%s%s%s%s%s%s", "%q", "%c", "%i" }) do
        if pcall(string.format, fmt) then return fmt end
    end
    return not pcall(string.format) and not pcall(string.format, {})
end
