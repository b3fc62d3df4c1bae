-- expect: script_error message="boom"
-- Provides a debug.traceback that loops: bindings run it as the message handler of every host call.
debug = { traceback = function() while true do end end }
agent = {}
function agent.resolve(args, config, context)
    error("boom", 0)
end
