-- expect: script_error message="no method for you"
-- Declares an agent whose metamethod raises when the engine looks for the method.
agent = setmetatable({}, { __index = function() error("no method for you", 0) end })
