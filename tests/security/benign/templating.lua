-- expect: ok args={"name": "Ada", "items": ["pen", "ink"]} value="Dear Ada,\n- pen\n- ink\n{{unknown}} $5 100%"
-- Fills a template, with text that holds the special signs of patterns.
agent = {}
local function render(template, values)
    return (template:gsub("{{(%w+)}}", function(name) return values[name] end))
end
function agent.resolve(args, config, context)
    local list = {}
    for _, item in ipairs(args.items) do list[#list + 1] = "- " .. item end
    return render("Dear {{name}},\n{{list}}\n{{unknown}} {{price}}", {
        name = args.name, list = table.concat(list, "\n"), price = "$5 100%",
    })
end
