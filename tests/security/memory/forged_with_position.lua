-- expect: script_error message="corpus:5: not enough memory (raised by the script)"
-- Raises the allocator's text with the position that error adds.
agent = {}
function agent.resolve(args, config, context)
    error("not enough memory")
end
