-- expect: script_error message~"attempt to call a nil value (global 'load')"
-- Compiles text at run time.
agent = {}
function agent.resolve(args, config, context)
    return load("return 1")()
end
