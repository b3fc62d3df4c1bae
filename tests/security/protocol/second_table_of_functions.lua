-- expect: script_error message~"is not a function but a nil value"
-- Declares another root than the one that is called.
tool = { execute = function() return 1 end }
agent = { complete = function() return 1 end }
