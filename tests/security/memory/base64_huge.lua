-- expect: memory_limit limits={cpu_s=3}
-- Encodes 8 MB as base64, which takes many small texts.
agent = {}
function agent.resolve(args, config, context)
    return #base64.encode(("x"):rep(8000000))
end
