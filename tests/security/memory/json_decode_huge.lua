-- expect: memory_limit limits={cpu_s=3}
-- Decodes a text of 4 MB that is a million small lists.
agent = {}
function agent.resolve(args, config, context)
    return #json.decode("[" .. ("[],"):rep(1000000) .. "[]]")
end
