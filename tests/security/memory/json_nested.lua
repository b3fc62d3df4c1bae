-- expect: ok value=[false, false, true]
-- Decodes lists and objects nested ten thousand deep, and some that are legal.
agent = {}
function agent.resolve(args, config, context)
    return {
        (pcall(json.decode, ("["):rep(10000) .. ("]"):rep(10000))),
        (pcall(json.decode, ('{"a":'):rep(10000) .. "1" .. ("}"):rep(10000))),
        (pcall(json.decode, ("["):rep(60) .. ("]"):rep(60))),
    }
end
