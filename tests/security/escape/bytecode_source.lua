-- expect: script_error message~"attempt to load a binary chunk" before="\u001bLua\u0054\u0000\u0019\u0093\r\n\u001a\n"
-- Is itself a precompiled chunk: the header of Lua 5.4 bytecode before the text.
agent = {}
function agent.resolve(args, config, context)
    return true
end
