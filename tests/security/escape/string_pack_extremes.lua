-- expect: ok value=true
-- Packs with sizes, alignments and repeats that overflow.
agent = {}
function agent.resolve(args, config, context)
    for _, fmt in ipairs({ "i17", "i0", "!17i4", "c2147483648", "s17", "i99999999999999999999", "Xz", "X", "c", "\xff" }) do
        if pcall(string.pack, fmt, "x", "x") then return fmt end
    end
    for _, fmt in ipairs({ "c2147483647c2147483647", "s", "z", "!3i4i9i9i9i20" }) do
        if pcall(string.packsize, fmt) then return fmt end
    end
    return true
end
