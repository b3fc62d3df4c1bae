-- expect: ok value=[]
-- Calls get and sources with a value of every type: no odd one is answered.
agent = {}
function agent.resolve(args, config, context)
    local answered = json.array({})
    for _, v in ipairs({ true, 1, 0 / 0, "", "\xff", {}, { 1 }, { id = 1 }, { id = {} }, print, json.null, { ID = "x" } }) do
        if pcall(context.get, v) then answered[#answered + 1] = type(v) end
    end
    if pcall(context.get) then answered[#answered + 1] = "nothing" end
    if not pcall(context.sources, 1, {}, print) then answered[#answered + 1] = "sources" end
    return answered
end
