-- expect: ok value=[]
-- Lists globals that are not documented: a new name in the environment is a new surface.
agent = {}
function agent.resolve(args, config, context)
    local known = {}
    for name in ([[
        _G _VERSION agent assert base64 collectgarbage coroutine crypto csv env error fs getmetatable gzip hash html http
        ipairs json kv log math next os pairs pcall print rawequal rawget rawlen rawset regex require retry secrets select
        setmetatable sleep string table template text time tonumber tostring type url utf8 uuid xpcall yaml
    ]]):gmatch("%S+") do known[name] = true end
    local unknown = json.array({})
    for name in pairs(_G) do
        if not known[name] then unknown[#unknown + 1] = name end
    end
    return unknown
end
