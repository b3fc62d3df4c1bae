-- expect: ok value=3 fill={"<NUL>": ["\u0000", 1]}
-- Holds a NUL byte in a string literal, which ends strings in C.
agent = { resolve = function() return #"a<NUL>b" end }
