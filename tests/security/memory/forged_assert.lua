-- expect: script_error message="not enough memory (raised by the script)"
-- Asserts with the text by which the allocator refuses.
agent = {}
function agent.resolve(args, config, context)
    assert(false, "not enough memory")
end
