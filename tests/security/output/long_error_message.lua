-- expect: script_error message~"mmmm"
-- Fails with a text of a megabyte: what is shown is bounded.
agent = {}
function agent.resolve(args, config, context)
    error(("m"):rep(1000000), 0)
end
