-- expect: ok value=true
-- Uses extreme widths, precisions and flags in string.format.
agent = {}
function agent.resolve(args, config, context)
    for _, fmt in ipairs({ "%999d", "%.999f", "%99999999999d", "%.99999999999s", "%10.123f", "%*d", "%n" }) do
        if pcall(string.format, fmt, 1, 1) then return fmt end
    end
    return #string.format("%99.99f", 1e300) > 300 and #string.format("%-99d", 1) == 99
        and #string.format("%a", 1) > 0
end
