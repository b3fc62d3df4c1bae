-- expect: ok value=true
-- Arms a finalizer with a placeholder, by a later field, or through an inherited field.
agent = {}
local ran = false
function agent.resolve(args, config, context)
    if pcall(setmetatable, {}, { __gc = true }) or pcall(setmetatable, {}, { __gc = false }) then return false end
    local late = {}
    for _ = 1, 200 do setmetatable({}, late) end
    late.__gc = function() ran = true end
    local inherited = setmetatable({}, { __index = { __gc = function() ran = true end } })
    for _ = 1, 200 do setmetatable({}, inherited) end
    local junk
    for i = 1, 20000 do junk = { i } end
    return not ran
end
