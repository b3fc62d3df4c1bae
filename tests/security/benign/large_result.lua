-- expect: ok limits={cpu_s=2}
-- Returns a table of two thousand records, large but legal.
agent = {}
function agent.resolve(args, config, context)
    local records = {}
    for i = 1, 2000 do
        records[i] = { id = i, name = "record " .. i, tags = { "a", "b" }, score = i / 3, text = ("x"):rep(200) }
    end
    return { records = records, total = #records }
end
