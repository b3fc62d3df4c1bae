-- expect: script_error message~"too many local variables" fill={"<LOCALS>": ["local v{i} = {i} ", 300]}
-- Declares three hundred local variables in one function.
agent = {}
function agent.resolve(args, config, context)
    <LOCALS>
    return v1
end
