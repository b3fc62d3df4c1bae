-- The description of a script's error, which may be any value.
local x = ...
local type, pcall, sub, next, concat, sort = x.type, x.pcall, x.sub, x.next, x.concat, x.sort
local match, find, format, traceback, raw_tostring = x.match, x.find, x.format, x.traceback, x.tostring
local tostring = x.need("wrapped").tostring

-- The most plain fields to show of a table without __tostring, and the most bytes of each text.
local MAX_FIELDS, MAX_TEXT = 8, 200
-- The most bytes of a message, and how many of them are searched for a removed name.
local MAX_MESSAGE, MAX_HINTED = 8192, 512

-- Names that the sandbox removes, and their replacements.
local FILES = "require('./name') of files of the script's own package; libraries such as json and regex are globals"
local REMOVED = {
    package = FILES, load = "", loadfile = "", dofile = "",
    io = "files of the script's folder: fs.read, fs.list", debug = "", warn = "log.warn", python = "",
}
local REMOVED_FIELDS = {
    execute = "os.execute", exit = "os.exit", getenv = "os.getenv", tmpname = "os.tmpname", setlocale = "os.setlocale",
    rename = "os.rename", remove = "os.remove", dump = "string.dump",
}
local INSTEAD = { getenv = "env.get", exit = "error or return" }

-- Names of Lua 5.1 and their replacements.
local OLD = { unpack = "table.unpack", loadstring = "", setfenv = "", getfenv = "", newproxy = "setmetatable" }
local OLD_FIELDS = {
    getn = "the operator #", maxn = "the operator #", gfind = "string.gmatch", pow = "the operator ^",
    log10 = "math.log(x, 10)", mod = "math.fmod",
}

local function hint(message)
    local name = match(message, "nil value %(global '([%w_]+)'%)")
    local instead = name and REMOVED[name]
    local field
    if not name then
        field = match(message, "attempt to call a nil value %(field '([%w_]+)'%)")
        name, instead = REMOVED_FIELDS[field], INSTEAD[field] or ""
    end
    local old = OLD[name] or OLD_FIELDS[field]
    if old then
        return " (" .. (field or name) .. " is of Lua 5.1, not of 5.4" .. (old ~= "" and "; instead: " .. old or "") .. ")"
    end
    if not name or not instead then return "" end
    return (field and " (if this is " .. name .. ", it" or " (" .. name) .. " is removed in the sandbox"
        .. (instead ~= "" and "; instead: " .. instead or "") .. "; docs/scripting/standard-library.md)"
end

-- The first line of a script in a traceback: frames of the prelude have none.
local function line(frames)
    local at = 1
    while true do
        local _, stop, frame = find(frames, "\n\t([^\n]*)", at)
        if not stop then return "" end
        local where = match(frame, "^(.-:%d+): in ")
        if where and not find(where, "^%?:") then return where .. ": " end
        at = stop + 1
    end
end

-- The plain fields of a table, named ones in their order: `code = 5, message = "no"`. Raw: no code of the script runs.
local function fields(t)
    local names, shown = {}, {}
    for key in next, t do
        if type(key) == "string" and #key <= 64 and #names < 64 then names[#names + 1] = key end
    end
    sort(names)
    for i = 1, #names do
        local value = x.rawget(t, names[i])
        local kind = type(value)
        if kind == "string" then
            shown[#shown + 1] = names[i] .. " = " .. format("%q", sub(value, 1, MAX_TEXT))
        elseif kind == "number" or kind == "boolean" then
            shown[#shown + 1] = names[i] .. " = " .. raw_tostring(value)
        end
        if #shown == MAX_FIELDS then break end
    end
    return concat(shown, ", ")
end

local function of_value(e, thread)
    local ok, text = pcall(tostring, e)
    if ok and type(text) == "string" and text ~= type(e) then return text end
    local shown = type(e) == "table" and x.getmetatable(e) == nil and fields(e) or ""
    if shown ~= "" then return line(traceback(thread)) .. "(the error is a table: " .. shown .. ")" end
    return (e == nil and line(traceback(thread)) or "") .. "(the error is a " .. type(e) .. " value)"
end

return {
    line = line,
    -- described(error, thread) -> kind, message, traceback. Longer than what is shown: the supervisor cuts both after
    -- it has searched them for secrets, as a cut secret would not be found. Both bounds together are a third of what
    -- one message may have beside its value (engine/workers/protocol.py): a byte that is not UTF-8 becomes three.
    described = function(e, thread)
        local message
        if type(e) == "string" or type(e) == "number" then
            message = raw_tostring(e)
            local more = hint(sub(message, 1, MAX_HINTED))
            message = sub(message, 1, MAX_MESSAGE - #more) .. more
        else
            message = of_value(e, thread)
        end
        return "script_error", sub(message, 1, MAX_MESSAGE), sub(traceback(thread), 1, 12288)
    end,
}
