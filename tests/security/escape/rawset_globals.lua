-- expect: ok value=true
-- Sets globals past every metamethod and reads names that the engine looks up.
agent = {}
function agent.resolve(args, config, context)
    rawset(_G, "debug", { traceback = function() while true do end end })
    rawset(_G, "python", {})
    rawset(_ENV, "package", { loaded = _G })
    return pcall(error, "x") == false and rawget(_G, "debug").traceback ~= nil
end
