-- expect: ok value=["3.14", "1e+10", "ff", "0042", "  1.50", "A", "100%", "1234567"]
-- Formats numbers in the usual ways.
agent = {}
function agent.resolve(args, config, context)
    return {
        ("%.2f"):format(math.pi), ("%g"):format(1e10), ("%x"):format(255), ("%04d"):format(42), ("%6.2f"):format(1.5),
        ("%c"):format(65), ("%d%%"):format(100), ("%d"):format(1234567.0),
    }
end
