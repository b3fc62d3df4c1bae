-- expect: ok|script_error before="#!/usr/bin/lua\n"
-- Begins with a shebang line: nothing starts that program.
agent = { resolve = function() return "with a shebang" end }
