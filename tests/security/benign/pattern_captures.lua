-- expect: ok value={"anchored": true, "balanced": "(b (c))", "date": [2024, 2, 29], "frontier": ["one", "two"], "position": 4, "url": {"host": "example.com", "path": "/a/b", "port": "8080"}}
-- Uses captures, positions, anchors, balanced matches and frontiers.
agent = {}
function agent.resolve(args, config, context)
    local y, m, d = ("2024-02-29"):match("^(%d+)-(%d+)-(%d+)$")
    local host, port, path = ("http://example.com:8080/a/b"):match("^%a+://([^/:]+):?(%d*)(/.*)$")
    local words = {}
    for word in ("one, two"):gmatch("%f[%a]%a+%f[%A]") do words[#words + 1] = word end
    return {
        date = { tonumber(y), tonumber(m), tonumber(d) },
        url = { host = host, port = port, path = path },
        balanced = ("a (b (c)) d"):match("%b()"),
        frontier = words,
        position = ("abc123"):match("()%d"),
        anchored = ("abc"):find("^b") == nil,
    }
end
