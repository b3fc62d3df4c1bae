-- expect: ok value=["the quick", "brown fox", "jumps"]
-- Wraps a text at ten letters.
agent = {}
function agent.resolve(args, config, context)
    local lines, line = {}, ""
    for word in ("the quick brown fox jumps"):gmatch("%S+") do
        if #line + #word + 1 > 10 and line ~= "" then
            lines[#lines + 1] = line
            line = word
        else
            line = line == "" and word or line .. " " .. word
        end
    end
    lines[#lines + 1] = line
    return lines
end
