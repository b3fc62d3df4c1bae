-- expect: ok value="caught" files={"a.lua": "local n = 'b' return require('./' .. n)", "b.lua": "local n = 'a' return require('./' .. n)"}
-- Makes a cycle at run time of names that are made there, twice, within a coroutine too.
agent = {}
local there = function() return require("./a"), require("./b") end
function agent.resolve(args, config, context)
    for _ = 1, 100 do
        local ok, problem = pcall(there)
        if ok or not problem:find("a cycle: a.lua -> b.lua -> a.lua", 1, true) then return problem end
        ok, problem = pcall(coroutine.wrap(there))
        if ok or not problem:find("a cycle", 1, true) then return problem end
    end
    return "caught"
end
