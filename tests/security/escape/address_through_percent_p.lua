-- expect: ok value=true
-- Reads addresses with %p, in every spelling that the format accepts.
agent = {}
function agent.resolve(args, config, context)
    for _, fmt in ipairs({ "%p", "%-20p", "%20p", "%%%p", "x%5p", "%s %p", "%-p" }) do
        local ok, text = pcall(string.format, fmt, {}, {})
        if ok then return fmt .. " gave " .. text end
    end
    return true
end
