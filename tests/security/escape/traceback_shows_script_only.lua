-- expect: script_error message="corpus:5: deep" traceback~"corpus:5:" notraceback~"engine"
-- Fails three calls deep: the traceback shows the script's own lines and nothing of the engine or the host.
agent = {}
local function third()
    error("deep")
end
local function second() third() return 1 end
function agent.resolve(args, config, context)
    second()
    return 1
end
