-- expect: ok value=true
-- Templates that include themselves, nest deep, name what is not theirs, and values with metamethods.
agent = {}
function agent.resolve(args, config, context)
    for _, bad in ipairs({ "{{>a}}", ("{{#a}}"):rep(100000), ("{{#a}}"):rep(50) .. ("{{/a}}"):rep(50), "{{a", "{{}}", "{{=<% %>=}}" }) do
        if pcall(template.render, bad, { a = true }, { partials = { a = "{{>b}}", b = "{{>a}}" } }) then return bad end
    end
    local lying = setmetatable({}, { __index = function() error("asked") end, __tostring = error, __len = error })
    if template.render("{{x}}{{#l}}{{y}}{{/l}}", { l = { lying } }) ~= "" then return false end
    return not pcall(template.render, "{{f}}", { f = print }) and template.render("{{{a}}}", { a = "{{f}}" }) == "{{f}}"
end
