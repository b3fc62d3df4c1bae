-- expect: script_error message="not enough memory (raised by the script)"
-- Raises the very text by which the allocator refuses.
agent = {}
function agent.resolve(args, config, context)
    error("not enough memory", 0)
end
