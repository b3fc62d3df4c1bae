-- expect: memory_limit files={"a.lua": "return {<X>}"} fill={"<X>": ["'x{i}',", 200000]} limits={memory_bytes=4194304}
-- Requires a file that compiles to more than the script may have.
agent = {}
function agent.resolve(args, config, context)
    return #require("./a")
end
