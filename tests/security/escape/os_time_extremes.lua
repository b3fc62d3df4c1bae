-- expect: ok value=true
-- Gives os.time fields that overflow the C types behind it.
agent = {}
function agent.resolve(args, config, context)
    for _, t in ipairs({
        { year = math.maxinteger, month = 1, day = 1 },
        { year = 2020, month = math.mininteger, day = 1 },
        { year = 2020, month = 1, day = 2 ^ 40 },
        { year = 2020, month = 1, day = 1, sec = math.maxinteger },
        { year = "x", month = 1, day = 1 },
        { year = 2020.5, month = 1, day = 1 },
        {},
    }) do
        if pcall(os.time, t) then return false end
    end
    return true
end
