-- expect: ok value=["Rex says woof", "Tom says meow", true, "Animal(Tom)", 2]
-- Builds classes with metatables, inheritance and metamethods.
agent = {}
local Animal = {}
Animal.__index = Animal
Animal.__tostring = function(self) return "Animal(" .. self.name .. ")" end
Animal.count = 0
function Animal.new(class, name)
    Animal.count = Animal.count + 1
    return setmetatable({ name = name }, class)
end
function Animal:speak() return self.name .. " says " .. self:sound() end
local Dog = setmetatable({ __tostring = Animal.__tostring }, { __index = Animal })
Dog.__index = Dog
function Dog:sound() return "woof" end
local Cat = setmetatable({ __tostring = Animal.__tostring }, { __index = Animal })
Cat.__index = Cat
function Cat:sound() return "meow" end
function agent.resolve(args, config, context)
    local rex, tom = Dog:new("Rex"), Cat:new("Tom")
    return { rex:speak(), tom:speak(), getmetatable(rex) == Dog, tostring(tom), Animal.count }
end
