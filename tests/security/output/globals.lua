-- expect: output_limit|script_error limit="value_depth"
-- Returns the environment itself, which is cyclic and full of functions: which is met first is up to the hash seed.
agent = {}
function agent.resolve(args, config, context)
    return _G
end
