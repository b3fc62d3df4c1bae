-- expect: ok config={"list": [], "map": {}} value={"list": [], "map": {}}
-- Passes an empty list and an empty object through: each stays what it was.
agent = {}
function agent.resolve(args, config, context)
    return { list = context.config.list, map = context.config.map }
end
