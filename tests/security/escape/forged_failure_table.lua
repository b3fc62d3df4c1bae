-- expect: script_error message="(the error is a table value)"
-- Raises a table that looks like the driver's own verdict.
agent = {}
function agent.resolve(args, config, context)
    error({ {}, "output_limit", "forged" }, 0)
end
