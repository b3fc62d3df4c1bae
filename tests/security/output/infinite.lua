-- expect: script_error message~".list[2] is an infinite number"
-- Returns an infinite number inside a list.
agent = {}
function agent.resolve(args, config, context)
    return { list = { 1, -math.huge } }
end
