-- expect: script_error message="not enough memory (raised by the script)"
-- Raises the allocator's text, put together at run time.
agent = {}
function agent.resolve(args, config, context)
    error(table.concat({ "not", "enough", "memory" }, " "), 0)
end
