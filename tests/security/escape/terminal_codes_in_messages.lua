-- expect: script_error message~"[2J"
-- Fails with terminal control codes; they travel as data.
agent = {}
function agent.resolve(args, config, context)
    error("\27[2J\27]0;title\7", 0)
end
