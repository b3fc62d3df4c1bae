-- expect: script_error message~"unexpected symbol" fill={"<BYTES>": ["\u00ff\u00fe", 1]}
-- Holds bytes that are not UTF-8 where a name is expected.
<BYTES> = 1
agent = { resolve = function() return 1 end }
