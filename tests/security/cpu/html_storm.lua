-- expect: cpu_limit limits={memory_bytes=67108864}
-- Parses and searches large sources until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local source = ("<div class='a b'>"):rep(900) .. ("<p>x<b>y</b>"):rep(20000)
    while true do pcall(html.select, source, "div div div div p ~ p ~ p b:not(.x)") pcall(html.text, source) end
end
