-- expect: ok value=60
-- Returns and measures a value of sixty levels, through JSON as well.
agent = {}
function agent.resolve(args, config, context)
    local t = { 1 }
    for _ = 2, 60 do t = { t } end
    local depth, inner = 0, json.decode(json.encode(t))
    while type(inner) == "table" do
        depth = depth + 1
        inner = inner[1]
    end
    return depth
end
