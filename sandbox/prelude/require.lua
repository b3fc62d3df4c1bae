-- `require`: files of the script's own package. The host has found them in its text (engine/bundle.py) and sent them
-- along; the worker gives the code of one when it is first required.
local x, load = ...
local error, type, rawget, rawset, rawequal, setmetatable = x.error, x.type, x.rawget, x.rawset, x.rawequal, x.setmetatable
local byte, find, sub, concat, remove = x.byte, x.find, x.sub, x.concat, x.remove
local env, native = x.env, x.native

local MAX_SHOWN = 128       -- bytes of a name in an error
local PAGE = " (docs/scripting/require.md)"

local results = {}          -- file -> a list of the one value that it returned
local running = {}          -- the files whose top level has not ended, in the order in which they were required

-- Ends the top level of a file, also after an error: what it declared as `agent` or `tool` is not the script's.
local ENDED = {
    __close = function(run)
        for i = #running, 1, -1 do
            if rawequal(running[i], run) then remove(running, i) end
        end
        rawset(env, "agent", run.agent)
        rawset(env, "tool", run.tool)
    end,
}
local function declared(name, before)
    local now = rawget(env, name)
    if type(now) == "table" and not rawequal(now, before) then return now end
end
-- Not a tail call, and through a local: so that a traceback shows the file's own frame as its main chunk.
local function result(file, chunk)
    local run <close> = setmetatable({ file = file, agent = rawget(env, "agent"), tool = rawget(env, "tool") }, ENDED)
    running[#running + 1] = run
    local value = chunk()
    if value == nil then value = declared("agent", run.agent) or declared("tool", run.tool) or true end
    return value
end

local function check(name, shown)
    if find(name, "^%./.") then return end
    if find(name, "^[%a_][%w_]*$") and rawget(env, name) ~= nil then
        error(shown .. ": " .. name .. " is a global here" .. PAGE, 3)
    end
    error(shown .. ": a name begins with './' and is that of a file of the script's own package" .. PAGE, 3)
end
local function check_cycle(file, shown)
    local chain
    for i = 1, #running do
        if running[i].file == file then chain = {} end
        if chain then chain[#chain + 1] = running[i].file end
    end
    if not chain then return end
    chain[#chain + 1] = file
    error(shown .. ": a cycle: " .. concat(chain, " -> "), 3)
end

return {
    require = function(name)
        if type(name) ~= "string" then error("require: a name is expected, got " .. type(name), 2) end
        local file = sub(name, 3)
        if sub(file, -4) ~= ".lua" then file = file .. ".lua" end
        local known = results[file]
        if known and sub(name, 1, 2) == "./" then return known[1] end
        local shown = 'require("' .. sub(name, 1, MAX_SHOWN) .. '")'
        check(name, shown)
        check_cycle(file, shown)
        local code = native(shown, "require:code", file)
        local chunk, message = load(code, "=" .. file, byte(code, 1) == 27 and "b" or "t", env)
        code = nil
        if not chunk then error(message, 0) end     -- with the file's own name and line
        known = { result(file, chunk) }
        results[file] = known
        return known[1]
    end,
}
