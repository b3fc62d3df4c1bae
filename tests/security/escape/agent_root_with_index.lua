-- expect: ok value="through __index"
-- Declares an agent whose method comes from a metamethod.
agent = setmetatable({}, { __index = function() return function() return "through __index" end end })
