-- expect: ok value={"inner": [false, true], "outer": [true, false]}
-- Asks whether it runs in a coroutine: the run must look like an ordinary main program.
agent = {}
function agent.resolve(args, config, context)
    local _, outer = coroutine.running()
    local result = { outer = { outer, coroutine.isyieldable() } }
    coroutine.wrap(function()
        local _, inner = coroutine.running()
        result.inner = { inner, coroutine.isyieldable() }
    end)()
    return result
end
