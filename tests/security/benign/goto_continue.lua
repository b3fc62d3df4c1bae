-- expect: ok value=[1, 3, 5, 7, 9]
-- Skips and leaves loops with goto.
agent = {}
function agent.resolve(args, config, context)
    local odd = {}
    for i = 1, 100 do
        if i % 2 == 0 then goto continue end
        if i > 9 then goto done end
        odd[#odd + 1] = i
        ::continue::
    end
    ::done::
    return odd
end
