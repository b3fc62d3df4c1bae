-- expect: script_error message="described"
-- Fails with an object whose __tostring writes to the log and yields while the error is described.
agent = {}
function agent.resolve(args, config, context)
    error(setmetatable({}, { __tostring = function()
        print("late line")
        pcall(coroutine.yield, 1)
        pcall(context.progress, 0.5, "late")
        return "described"
    end }))
end
