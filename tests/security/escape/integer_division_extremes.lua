-- expect: ok value=[true, true, true, false, false]
-- Divides the smallest integer by -1 and integers by zero, which raises SIGFPE in C.
agent = {}
function agent.resolve(args, config, context)
    local lo = math.mininteger
    return {
        lo // -1 == lo, lo % -1 == 0, 1 / 0 == math.huge,
        (pcall(function() return 1 // 0 end)), (pcall(function() return 1 % 0 end)),
    }
end
