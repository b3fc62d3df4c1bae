-- expect: ok value=true
-- Hides __gc behind a metatable whose __index gives it only to the real setmetatable.
agent = {}
local ran = 0
function agent.resolve(args, config, context)
    local asked = 0
    local meta = setmetatable({}, { __index = function(_, key)
        asked = asked + 1
        if key == "__gc" then return function() ran = ran + 1 end end
    end })
    for _ = 1, 100 do setmetatable({}, meta) end
    local junk
    for i = 1, 20000 do junk = { i } end
    return ran == 0
end
