-- expect: ok|script_error before="\u00ef\u00bb\u00bf"
-- Begins with a byte order mark, as some editors write it.
agent = { resolve = function() return "with a mark" end }
