-- expect: ok value=[4, 255] fill={"<BYTES>": ["\u00ff\u00fe\u0080\u00c0", 1]}
-- Holds bytes that are not UTF-8 in a string literal and in a comment.
-- <BYTES>
agent = { resolve = function() return { #"<BYTES>", ("<BYTES>"):byte(1) } end }
