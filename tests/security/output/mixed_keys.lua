-- expect: script_error message~"both list items and named keys"
-- Returns a table that is half list, half object.
agent = {}
function agent.resolve(args, config, context)
    return { 1, 2, name = "x" }
end
