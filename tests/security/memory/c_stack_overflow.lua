-- expect: ok value=[false, false, false, false]
-- Recurses through C: callbacks of gsub, sort, metamethods and coroutines.
agent = {}
function agent.resolve(args, config, context)
    local function through_gsub() return (("x"):gsub("x", through_gsub)) end
    local function through_sort() table.sort({ 2, 1 }, through_sort) end
    local meta = {}
    meta.__tostring = function(v) return tostring(v) end
    local function through_coroutine() return coroutine.wrap(through_coroutine)() end
    return {
        (pcall(through_gsub)), (pcall(through_sort)), (pcall(tostring, setmetatable({}, meta))), (pcall(through_coroutine)),
    }
end
