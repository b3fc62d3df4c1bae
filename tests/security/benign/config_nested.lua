-- expect: ok config={"team": {"name": "platform", "members": ["ada", "grace"]}, "ratio": 0.5, "count": 3, "on": true} value=["platform", "ada, grace", 2, 0.5, "integer", "float", true]
-- Reads nested tables, lists, booleans and both kinds of numbers from its configuration.
agent = {}
function agent.resolve(args, config, context)
    local c = context.config
    return {
        c.team.name, table.concat(c.team.members, ", "), #c.team.members, c.ratio,
        math.type(c.count), math.type(c.ratio), c.on,
    }
end
