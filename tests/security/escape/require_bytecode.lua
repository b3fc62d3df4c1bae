-- expect: script_error message~"require(\"." files={"a.lua": "\u001bLuaT\u0000\u0019\u0093\r\n\u001a\n"}
-- Requires a file of bytecode.
agent = {}
function agent.resolve(args, config, context)
    return require("./a")
end
