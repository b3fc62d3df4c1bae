-- expect: cpu_limit files={"a.lua": "n = (n or 0) + 1 error(n)"}
-- Requires a file that fails, again and again.
agent = {}
function agent.resolve(args, config, context)
    while true do pcall(require, "./a") end
    return require("./a")
end
