-- expect: ok value=300000 fill={"<TEXT>": ["abc", 100000]}
-- Holds one string literal of 300 kB.
agent = { resolve = function() return #"<TEXT>" end }
