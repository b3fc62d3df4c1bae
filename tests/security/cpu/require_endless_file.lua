-- expect: cpu_limit files={"a.lua": "while true do end"}
-- Requires a file whose top level never ends.
agent = {}
function agent.resolve(args, config, context)
    pcall(require, "./a")
    return require("./a")
end
