-- expect: ok value="HOOKED" runs=2
-- Replaces a function of string and uses it through the shared metatable; the next run must not see it.
agent = {}
function agent.resolve(args, config, context)
    if string.upper("x") ~= "X" or ("x"):upper() ~= "X" then return "the change survived" end
    string.upper = function() return "HOOKED" end
    return ("x"):upper()
end
