-- expect: script_error message~"unfinished long string" fill={"<EQ>": ["=", 50000]}
-- Opens a long bracket with fifty thousand signs and never closes it.
agent = { resolve = function() return [<EQ>[ text
