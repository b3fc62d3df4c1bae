-- expect: ok value={"encoded": "[]", "plain": "{}"} runs=2
-- Marks tables as lists; the marks are held weakly and cannot be read or shared.
agent = {}
function agent.resolve(args, config, context)
    local marked = json.array({})
    return { encoded = json.encode(marked), plain = json.encode({}) }
end
