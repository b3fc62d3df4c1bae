-- expect: ok value=null
-- Returns nothing.
agent = {}
function agent.resolve(args, config, context) end
