-- expect: script_error message="corpus:4: unexpected symbol" fill={"<NUL>": ["\u0000", 1]}
-- Holds a NUL byte between two statements: what follows must not be cut off silently.
agent = { resolve = function() return "before" end }
<NUL>
agent = { resolve = function() return "after" end }
