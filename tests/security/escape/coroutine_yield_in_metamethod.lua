-- expect: ok value={"again": 42, "got": "asked"}
-- Yields inside a metamethod and inside an iterator.
agent = {}
function agent.resolve(args, config, context)
    local t = setmetatable({}, { __index = function(_, key) return coroutine.yield(key) end })
    local inner = coroutine.create(function() return t.asked end)
    local _, got = coroutine.resume(inner)
    local _, again = coroutine.resume(inner, 42)
    return { got = got, again = again }
end
