-- expect: memory_limit|cpu_limit limits={cpu_s=3}
-- Ten sections inside of each other, each over ten items.
agent = {}
function agent.resolve(args, config, context)
    local text = ("{{#l}}"):rep(10) .. "xxxxxxxxxx" .. ("{{/l}}"):rep(10)
    return #template.render(text, { l = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 } })
end
