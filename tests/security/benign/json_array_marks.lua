-- expect: ok value={"filtered": [], "list": [], "object": {}}
-- Returns empty lists that are marked and stay lists.
agent = {}
function agent.resolve(args, config, context)
    local filtered = json.array({})
    for _, n in ipairs({ 1, 2, 3 }) do
        if n > 5 then filtered[#filtered + 1] = n end
    end
    return { list = json.array({}), object = {}, filtered = filtered }
end
