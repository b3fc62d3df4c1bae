-- expect: script_error message~"too many upvalues" fill={"<A>": ["local a{i} = {i} ", 150], "<B>": ["local b{i} = {i} ", 150], "<USEA>": ["a{i} + ", 150], "<USEB>": ["b{i} + ", 150]}
-- Uses three hundred variables of enclosing functions in one function.
agent = {}
<A>
function agent.resolve(args, config, context)
    <B>
    local function inner() return <USEA> <USEB> 0 end
    return inner()
end
