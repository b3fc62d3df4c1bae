-- expect: ok value=["(4, 6)", true, false, "(2, 4)", 5.0, "(1, 2)(3, 4)", 2, 30]
-- Defines arithmetic, comparison, concatenation, length and call for a type of its own.
agent = {}
local V = {}
V.__index = V
local function vector(x, y) return setmetatable({ x = x, y = y }, V) end
V.__add = function(a, b) return vector(a.x + b.x, a.y + b.y) end
V.__mul = function(a, n) return vector(a.x * n, a.y * n) end
V.__eq = function(a, b) return a.x == b.x and a.y == b.y end
V.__lt = function(a, b) return a.x < b.x end
V.__len = function() return 2 end
V.__call = function(self, n) return (self.x + self.y) * n end
V.__tostring = function(v) return ("(%d, %d)"):format(v.x, v.y) end
V.__concat = function(a, b) return tostring(a) .. tostring(b) end
function agent.resolve(args, config, context)
    local a, b = vector(1, 2), vector(3, 4)
    return { tostring(a + b), a == vector(1, 2), b < a, tostring(a * 2), math.sqrt(b.x ^ 2 + b.y ^ 2), a .. b, #a, a(10) }
end
