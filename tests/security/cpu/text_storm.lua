-- expect: cpu_limit limits={memory_bytes=67108864}
-- Changes case, breaks lines and compares texts of a megabyte until it is stopped.
agent = {}
function agent.resolve(args, config, context)
    local long = ("a B\t"):rep(250000)
    while true do
        text.upper(long) text.wrap(long, 20) text.similarity(long, long .. "x") text.trim((" "):rep(1000000) .. "x") text.dedent(long)
    end
end
