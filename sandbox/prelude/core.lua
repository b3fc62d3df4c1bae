-- The Lua half of a run: the script's environment, the value codec, host calls by yield, and the driver.
--
-- Trusted code, loaded into a fresh state before the script. It keeps what it needs as locals, cuts the real globals,
-- and hands the host three functions: put (store bytes), begin (prepare a run), step (go on until something happens).
-- Only byte strings, booleans and numbers cross; no host object ever enters this state.
local fill, modules = ...

local real = _G
local type, next, rawget, rawset, rawlen, rawequal = type, next, rawget, rawset, rawlen, rawequal
local pcall, select, tonumber, raw_error, raw_tostring = pcall, select, tonumber, error, tostring
local raw_setmetatable, raw_load, math_type = setmetatable, load, math.type
local raw_getmetatable, traceback = debug.getmetatable, debug.traceback
local create, raw_resume, raw_yield = coroutine.create, coroutine.resume, coroutine.yield
local raw_isyieldable, raw_running, status = coroutine.isyieldable, coroutine.running, coroutine.status
local byte, sub, format, pack, unpack = string.byte, string.sub, string.format, string.pack, string.unpack
local find, gsub, rep, char = string.find, string.gsub, string.rep, string.char
local concat, remove, table_unpack, table_pack = table.concat, table.remove, table.unpack, table.pack
local table_move = table.move
local real_string, utf8_len, utf8_char, os_date = string, utf8.len, utf8.char, os.date
local random, raw_randomseed, collect, max = math.random, math.randomseed, collectgarbage, math.max

local OUT_OF_MEMORY = "not enough memory"     -- what the allocator's refusal throws (lstate.c, memerrmsg)
local CALL, CALLS, LOG, PROGRESS = {}, {}, {}, {}   -- tags of what a run yields to the driver; no script can name one
local NOT_HERE = " cannot be called here: inside a callback of sort, gsub or tostring nothing can wait"
local ARRAYS = raw_setmetatable({}, { __mode = "k" })   -- tables known to be lists, also when empty
local NULL = raw_setmetatable({}, {
    __tostring = function() return "null" end,
    __newindex = function() raw_error("json.null cannot be changed", 2) end,
    __metatable = false,
})

-- Limits and facts of this run, set by begin.
local max_output, max_depth, log_left, progress_left
local root, method, source, chunk_name, args_bytes
local inbox
local hosts = raw_setmetatable({}, { __mode = "k" })    -- coroutines that the script must not see as such: a run is made of them

-- Values ---------------------------------------------------------------------------------------------------------
-- MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), restricted to what JSON has, plus bin.

-- decode(s, pos) -> value, next position. The input comes from the supervisor, which bounds depth and size.
local decode
local function decode_list(s, pos, n)
    local t = {}
    ARRAYS[t] = true
    for i = 1, n do t[i], pos = decode(s, pos) end
    return t, pos
end
local function decode_map(s, pos, n)
    local t = {}
    for _ = 1, n do
        local key, value
        key, pos = decode(s, pos)
        value, pos = decode(s, pos)
        if key ~= nil then t[key] = value end
    end
    return t, pos
end
-- What string.unpack reads by itself, by first byte.
local FORMATS = {
    [0xc4] = ">s1", [0xc5] = ">s2", [0xc6] = ">s4", [0xca] = ">f", [0xcb] = ">d",
    [0xcc] = "B", [0xcd] = ">I2", [0xce] = ">I4", [0xd0] = "b", [0xd1] = ">i2", [0xd2] = ">i4", [0xd3] = ">i8",
    [0xd9] = ">s1", [0xda] = ">s2", [0xdb] = ">s4",
}
function decode(s, pos)
    local b = byte(s, pos)
    pos = pos + 1
    if b < 0x80 then return b, pos end
    if b >= 0xe0 then return b - 0x100, pos end
    if b < 0x90 then return decode_map(s, pos, b & 15) end
    if b < 0xa0 then return decode_list(s, pos, b & 15) end
    if b < 0xc0 then return sub(s, pos, pos + (b & 31) - 1), pos + (b & 31) end
    local form = FORMATS[b]
    if form then return unpack(form, s, pos) end
    if b == 0xc0 then return nil, pos end
    if b < 0xc4 then return b == 0xc3, pos end
    local n
    if b == 0xcf then                                -- beyond 64 signed bits a JSON integer becomes a float
        n, pos = unpack(">i8", s, pos)
        return n >= 0 and n or n + 0x1p64, pos
    end
    n, pos = unpack(b & 1 == 0 and ">I2" or ">I4", s, pos)       -- 0xdc, 0xdd: list; 0xde, 0xdf: map
    return (b < 0xde and decode_list or decode_map)(s, pos, n)
end

-- shape(t) -> "list", length | "map", count | nil, reason. Raw access only: no metamethod of the script runs.
local function shape(t)
    local count, top, named = 0, 0, false
    for key in next, t do
        count = count + 1
        if math_type(key) == "integer" and key >= 1 then
            if key > top then top = key end
        elseif type(key) == "string" then
            named = true
        else
            return nil, "a key that is neither a string nor a list position"
        end
    end
    if count == 0 then return ARRAYS[t] and "list" or "map", 0 end
    if top == 0 then return "map", count end
    if named then return nil, "both list items and named keys" end
    if top > 2 * count + 8 then return nil, "a list with too many holes" end
    return "list", top
end

-- encode(value, binary) -> bytes | nil, kind, reason. kind is "wrong_shape", "output_limit" or "depth_limit"; the
-- reason names the path in the value. With binary, strings that are not UTF-8 are sent as bytes; without, they are a wrong shape.
local buffer, used, open, kind, reason, allow_binary
local function emit(s)
    used = used + #s
    if used > max_output then
        kind, reason = "output_limit", "is larger than " .. max_output .. " bytes"
        return false
    end
    buffer[#buffer + 1] = s
    return true
end
local function refuse(what, why)
    kind, reason = what, why
    return false
end
local put_value
local function put_string(s)
    local n = #s
    if used + n > max_output then return emit(s) end   -- refused before it is scanned
    if utf8_len(s) == nil then
        if not allow_binary then return refuse("wrong_shape", "is a string that is not UTF-8") end
        return emit(pack(">Bs4", 0xc6, s))
    end
    if n < 32 then return emit(char(0xa0 | n) .. s) end
    if n < 0x100 then return emit(char(0xd9, n) .. s) end
    if n < 0x10000 then return emit(pack(">Bs2", 0xda, s)) end
    return emit(pack(">Bs4", 0xdb, s))
end
local function put_integer(v)
    if v >= 0 then
        if v < 0x80 then return emit(char(v)) end
        if v < 0x100 then return emit(char(0xcc, v)) end
        if v < 0x10000 then return emit(pack(">BI2", 0xcd, v)) end
        if v < 0x100000000 then return emit(pack(">BI4", 0xce, v)) end
    elseif v >= -32 then
        return emit(char(0x100 + v))
    end
    return emit(pack(">Bi8", 0xd3, v))
end
local function put_number(v)
    if math_type(v) == "integer" then return put_integer(v) end
    if v ~= v then return refuse("wrong_shape", "is not a number (NaN)") end
    if v == 1 / 0 or v == -1 / 0 then return refuse("wrong_shape", "is an infinite number") end
    return emit(pack(">Bd", 0xcb, v))
end
local function put_table(t, depth)
    if rawequal(t, NULL) then return emit("\xc0") end     -- ==, and a script's __eq would run in the middle of this
    if open[t] then return refuse("depth_limit", "contains itself (a cycle)") end
    if depth >= max_depth then return refuse("depth_limit", "is nested deeper than " .. max_depth .. " levels") end
    local what, n = shape(t)
    if what == nil then return refuse("wrong_shape", "is a table with " .. n) end
    open[t] = true
    if what == "list" then
        if not emit(n < 16 and char(0x90 | n) or pack(">BI4", 0xdd, n)) then return false end
        for i = 1, n do
            if not put_value(rawget(t, i), depth + 1) then
                reason = "[" .. i .. "]" .. (find(reason, "^[%[.]") and "" or " ") .. reason
                return false
            end
        end
    else
        if not emit(n < 16 and char(0x80 | n) or pack(">BI4", 0xdf, n)) then return false end
        for key, value in next, t do
            if not put_string(key) then
                reason = "has a key that " .. reason
                return false
            end
            if not put_value(value, depth + 1) then
                local shown = #key <= 64 and utf8_len(key) and key or "..."
                reason = "." .. shown .. (find(reason, "^[%[.]") and "" or " ") .. reason
                return false
            end
        end
    end
    open[t] = nil
    return true
end
function put_value(v, depth)
    local t = type(v)
    if t == "string" then return put_string(v) end
    if t == "number" then return put_number(v) end
    if t == "table" then return put_table(v, depth) end
    if t == "boolean" then return emit(v and "\xc3" or "\xc2") end
    if t == "nil" then return emit("\xc0") end
    return refuse("wrong_shape", "is a " .. t)
end
local function encode(value, binary)
    buffer, used, open, allow_binary = {}, 0, {}, binary
    local ok = put_value(value, 0)
    local bytes = ok and concat(buffer)
    buffer, open = nil, nil
    if ok then return bytes end
    return nil, kind, reason
end

-- Wrapped names of the interpreter ---------------------------------------------------------------------------------
local wrapped = {}

-- What a wrapped function of C says of its arguments, with its name and the script's line: frames of this file have
-- neither. Called as the last thing of a wrapper, so that level 2 is the script.
local function blame(name, ok, ...)
    if ok then return ... end
    local message = ...
    if rawequal(message, OUT_OF_MEMORY) then raw_error(message, 0) end
    raw_error((gsub(message, "'%?'", "'" .. name .. "'")), 2)
end

-- lua_error turns this very text into a true out-of-memory error (lapi.c), so a script that raises it is given
-- another: an uncaught OUT_OF_MEMORY is then always the allocator's.
local function own(message)
    if rawequal(message, OUT_OF_MEMORY) then return OUT_OF_MEMORY .. " (raised by the script)" end
    return message
end
wrapped["error"] = function(message, level)
    if level == nil then level = 1 end
    if type(level) == "number" and level > 0 then level = level + 1 end   -- this function is a level of its own
    raw_error(own(message), level)
end
wrapped["assert"] = function(...)
    local value, message = ...
    if value then return ... end
    if select("#", ...) == 0 then raw_error("bad argument #1 to 'assert' (value expected)", 2) end
    if select("#", ...) == 1 then message = "assertion failed!" end
    raw_error(own(message), 0)
end

local function tostring(...)
    if select("#", ...) == 0 then raw_error("bad argument #1 to 'tostring' (value expected)", 2) end
    local v = ...
    local t = type(v)
    if t == "string" then return v end
    if t == "number" or t == "boolean" or t == "nil" then return raw_tostring(v) end
    local meta = raw_getmetatable(v)
    if meta and rawget(meta, "__tostring") ~= nil then return raw_tostring(v) end
    local name = meta and rawget(meta, "__name")
    return type(name) == "string" and name or t
end
wrapped["tostring"] = tostring

wrapped["setmetatable"] = function(t, ...)
    local meta = ...
    if type(meta) == "table" and rawget(meta, "__gc") ~= nil then
        raw_error("setmetatable: __gc is not available here", 2)
    end
    return blame("setmetatable", pcall(raw_setmetatable, t, ...))
end
wrapped["getmetatable"] = function(v)
    local meta = raw_getmetatable(v)
    if type(meta) ~= "table" then return nil end
    local protected = rawget(meta, "__metatable")
    if protected ~= nil then return protected end
    return meta
end
wrapped["collectgarbage"] = function(option)
    if option == "count" then return collect("count") end
    return 0
end

wrapped["string.format"] = function(fmt, ...)
    if type(fmt) ~= "string" then return blame("format", pcall(format, fmt, ...)) end
    if find(gsub(fmt, "%%%%", ""), "%%[-+ #0-9.]*p") then
        raw_error("string.format: %p is not available here", 2)
    end
    local n = select("#", ...)
    for i = 1, n do
        local t = type((select(i, ...)))
        if t == "table" or t == "function" or t == "thread" then
            local values = table_pack(...)
            for j = i, n do
                t = type(values[j])
                if t == "table" or t == "function" or t == "thread" then values[j] = tostring(values[j]) end
            end
            return blame("format", pcall(format, fmt, table_unpack(values, 1, n)))
        end
    end
    return blame("format", pcall(format, fmt, ...))
end

local seed_a, seed_b
local function seed(...) raw_randomseed(...) end      -- not what it returns: an address is part of it
wrapped["math.randomseed"] = function(...)
    if select("#", ...) > 0 then
        return blame("randomseed", pcall(seed, ...))
    else
        raw_randomseed(seed_a, seed_b)
        seed_a, seed_b = random(0), random(0)
    end
end

wrapped["os.date"] = function(fmt, ...)
    if type(fmt) == "string" and #fmt > 256 then raw_error("os.date: the format is longer than 256 bytes", 2) end
    return blame("date", pcall(os_date, fmt, ...))
end

-- Coroutines: a host call inside a script's own coroutine is yielded upward until it reaches the driver.
local kept_lines = {}     -- log lines made where nothing can be yielded; sent with the next step
local function relay(thread, ok, ...)
    local tag, level, text = ...
    if ok and (rawequal(tag, CALL) or rawequal(tag, CALLS) or rawequal(tag, LOG) or rawequal(tag, PROGRESS)) then
        if not raw_isyieldable() then       -- inside a callback of C: nothing can be asked of the host
            if rawequal(tag, CALLS) then
                inbox = "context.parallel" .. NOT_HERE
                return relay(thread, raw_resume(thread, false))
            end
            if rawequal(tag, CALL) then
                inbox = level .. NOT_HERE
                return relay(thread, raw_resume(thread, false))
            end
            if rawequal(tag, LOG) then kept_lines[#kept_lines + 1] = { level, text } end
            return relay(thread, raw_resume(thread))
        end
        return relay(thread, raw_resume(thread, raw_yield(...)))
    end
    return ok, ...
end
local function resume(thread, ...)
    if type(thread) ~= "thread" then raw_error("bad argument #1 to 'resume' (coroutine expected)", 2) end
    return relay(thread, raw_resume(thread, ...))
end
wrapped["coroutine.resume"] = resume
local function unwrap(ok, ...)
    if ok then return ... end
    raw_error((...), 0)
end
wrapped["coroutine.wrap"] = function(f)
    if type(f) ~= "function" then raw_error("bad argument #1 to 'wrap' (function expected)", 2) end
    local thread = create(f)
    return function(...) return unwrap(resume(thread, ...)) end
end
wrapped["coroutine.yield"] = function(...)
    if hosts[raw_running()] then raw_error("attempt to yield from outside a coroutine", 2) end
    return raw_yield(...)
end
wrapped["coroutine.isyieldable"] = function(thread)
    if thread == nil then thread = raw_running() end
    if type(thread) ~= "thread" then raw_error("bad argument #1 to 'isyieldable' (coroutine expected)", 2) end
    return not hosts[thread] and raw_isyieldable(thread)
end
wrapped["coroutine.running"] = function()
    local thread = raw_running()
    return thread, hosts[thread] or false
end

-- Logging: yields a line where it can; inside a callback of C (sort, gsub, a metamethod) keeps it for the next step.
local function log_line(level, text)
    if log_left < 0 then return end
    log_left = log_left - #text - 16       -- 16: what a line costs beside its text
    if log_left < 0 then text = sub(text, 1, max(0, #text + log_left)) .. " [log truncated: limit reached]" end
    if not utf8_len(text) then text = gsub(text, "[\x80-\xff]", "?") end
    if raw_isyieldable() then
        raw_yield(LOG, level, text)
    else
        kept_lines[#kept_lines + 1] = { level, text }
    end
end
local function joined(...)
    local parts = table_pack(...)
    for i = 1, parts.n do parts[i] = tostring(parts[i]) end
    return concat(parts, "\t", 1, parts.n)
end
wrapped["print"] = function(...) log_line("info", joined(...)) end
local log = {}
for _, level in next, { "debug", "info", "warn", "error" } do
    log[level] = function(...) log_line(level, joined(...)) end
end

-- Host calls -------------------------------------------------------------------------------------------------------
-- host_call(name, arguments) -> the host's value. Refusals and failures are raised where the script made the call.
local function host_call(name, arguments)
    if not raw_isyieldable() then
        raw_error(name .. NOT_HERE, 3)
    end
    local bytes, _, why = encode(arguments, true)
    if not bytes then raw_error(name .. ": the argument " .. why, 3) end
    if raw_yield(CALL, name, bytes) then
        local reply = inbox
        inbox = nil
        return (decode(reply, 1))
    end
    local message = inbox
    inbox = nil
    raw_error(own(message), 3)
end

local function named(first, key, options)
    if type(first) == "table" then return first end
    local arguments = {}
    if type(options) == "table" then
        for k, v in next, options do arguments[k] = v end
    end
    arguments[key] = first
    return arguments
end

local function tool_caller(name)
    return function(params)
        local answer = host_call("context.call_tool", { name = name, params = params })
        return answer
    end
end
-- The tools that this run may call, so that a script can list them. Any other name can be called too: the host refuses
-- it, and says why.
local function tools_table(names)
    local tools = {}
    for _, name in next, names do tools[name] = tool_caller(name) end
    return raw_setmetatable(tools, { __index = function(_, name) return tool_caller(name) end, __metatable = false })
end

local lazy
local function build_context(config, tools)
    return {
        config = config,
        tools = tools_table(tools),
        call_tool = function(name, params)
            local answer = host_call("context.call_tool", { name = name, params = params })
            return answer
        end,
        parallel = lazy("parallel", { "parallel" }).parallel,
        search = function(query, options)
            local found = host_call("context.search", named(query, "query", options))
            return found
        end,
        get = function(id)
            local document = host_call("context.get", named(id, "id"))
            return document
        end,
        sources = function()
            local sources = host_call("context.sources", {})
            return sources
        end,
        progress = function(fraction, message)
            if math_type(fraction) == nil or fraction ~= fraction or fraction == 1 / 0 or fraction == -1 / 0 then
                raw_error("context.progress: the fraction must be a finite number", 2)
            end
            if message ~= nil then message = sub(tostring(message), 1, 512) end
            if message and not utf8_len(message) then message = gsub(message, "[\x80-\xff]", "?") end
            if progress_left > 0 and raw_isyieldable() then
                progress_left = progress_left - 1
                raw_yield(PROGRESS, fraction + 0.0, message or "")
            end
        end,
    }
end

-- The environment --------------------------------------------------------------------------------------------------
-- json, base64, crypto, http and parallel are compiled when a script first uses them: most runs never pay for them.
local base64_encode
function lazy(name, members)
    local library, loaded = {}, nil
    for _, member in next, members do
        library[member] = function(...)
            loaded = loaded or raw_load(modules[name], "=[engine]", "b")({
                ARRAYS = ARRAYS, NULL = NULL, shape = shape, max_depth = max_depth,
                error = raw_error, pcall = pcall, rawget = rawget, rawequal = rawequal, next = next,
                type = type, math_type = math_type,
                tonumber = tonumber, string = real_string, concat = concat, utf8_len = utf8_len,
                utf8_char = utf8_char, table_pack = table_pack,
                CALL = CALL, CALLS = CALLS, LOG = LOG, PROGRESS = PROGRESS, NOT_HERE = NOT_HERE, hosts = hosts,
                create = create, resume = raw_resume, yield = raw_yield, status = status,
                isyieldable = raw_isyieldable,
                host_call = host_call, base64_encode = base64_encode,
                take_inbox = function()
                    local text = inbox
                    inbox = nil
                    return text
                end,
            })
            return loaded[member](...)
        end
    end
    return library
end
local env = fill({}, real, wrapped)
env.log = log
env.json = lazy("json", { "parse", "decode", "encode" })
env.json.null = NULL
env.json.array = function(t)
    if type(t) ~= "table" then raw_error("json.array: a table is expected, got " .. type(t), 2) end
    ARRAYS[t] = true
    return t
end
env.base64 = lazy("base64", { "encode", "decode" })
base64_encode = env.base64.encode
env.crypto = lazy("crypto", { "sha256", "hmac_sha256" })
env.http = lazy("http", { "get", "post", "put", "patch", "delete", "basic_auth" })
env.env = {
    get = function(name)
        local value = host_call("env.get", { name = name })
        return value
    end,
}
env.fs = {
    read = function(path)
        local content = host_call("fs.read", { path = path })
        return content
    end,
    list = function(path, glob)
        local entries = host_call("fs.list", { path = path, glob = glob })
        return entries
    end,
}
env.sleep = function(seconds)
    host_call("sleep", { seconds = seconds })
end
-- Placeholders of secrets: filled by main; the host puts the values into requests.
local secret_names = {}
local function no_secret(_, name)
    if method == "" then return "secret:" .. tostring(name) end      -- described, not run: there are none yet
    log_line("warn", "secrets." .. sub(tostring(name), 1, 64) .. ": there is no such secret for this script, so it is nil")
end
env.secrets = raw_setmetatable(secret_names, { __index = no_secret, __metatable = false })

-- Strings reach the script's own string table, and their metatable is sealed.
local string_meta = raw_getmetatable("")
string_meta.__index = env.string
string_meta.__metatable = false

real_string.dump = nil
-- Cut the real globals: nothing of them is reachable any more, not even through package.loaded.
local loaded_packages = package.loaded
for name in next, loaded_packages do loaded_packages[name] = nil end
for name in next, real do real[name] = nil end

-- The driver ---------------------------------------------------------------------------------------------------------
local FAILURE = {}          -- a verdict of the driver about the script's answer; a script cannot make one
local function fail(what, message)
    raw_error({ FAILURE, what, message }, 0)
end

local function declared_table(chunk)
    local returned = chunk()
    local declared = rawget(env, root)
    if type(declared) ~= "table" then declared = returned end
    if type(declared) ~= "table" then
        fail("wrong_shape", "the script neither sets the global '" .. root .. "' to a table nor returns one")
    end
    return declared
end

-- What a script may say of itself; other fields are its own business and need not be plain values.
local DESCRIBED = {
    "name", "title", "description", "version", "tools", "arguments", "parameters", "returns", "annotations",
}
local METHODS = { "resolve", "complete", "execute", "scan" }
local function describe(declared)
    local said, functions = {}, {}
    for _, key in next, DESCRIBED do said[key] = rawget(declared, key) end
    for _, name in next, METHODS do
        if type(rawget(declared, name)) == "function" then functions[#functions + 1] = name end
    end
    said.functions = functions
    ARRAYS[functions] = true
    return said
end

local function main()
    local chunk, message = raw_load(source, "=" .. chunk_name, "t", env)
    source = nil
    if not chunk then raw_error(message, 0) end
    local count = byte(args_bytes, 1) & 15            -- a list of fewer than 16: its length is in its first byte
    local given, pos = decode(args_bytes, 1)
    local config, tools, secrets
    config, pos = decode(args_bytes, pos)
    tools, pos = decode(args_bytes, pos)
    secrets = decode(args_bytes, pos)
    args_bytes = nil
    for name, placeholder in next, secrets do rawset(secret_names, name, placeholder) end
    local declared = declared_table(chunk)
    local answer
    if method == "" then
        answer = describe(declared)
    else
        local f = declared[method]
        if type(f) ~= "function" then
            fail("wrong_shape", root .. "." .. method .. " is not a function but a " .. type(f) .. " value")
        end
        local context = build_context(config, tools)
        if method == "complete" then            -- the last argument is not a parameter: the others typed so far
            context.arguments, count = given[count], count - 1
        end
        given[count + 1] = context
        answer = f(table_unpack(given, 1, count + 1))
    end
    local bytes, what, why = encode(answer, false)
    if not bytes then
        fail(what, (method == "" and root or "the answer of " .. root .. "." .. method .. ": value")
            .. (find(why, "^[%[.]") and "" or " ") .. why)
    end
    return bytes
end

local thread, last_error

local function put(bytes) inbox = bytes end

local function begin(source_, name_, root_, method_, args_, output_, depth_, log_, progress_, seed_a_, seed_b_)
    source, chunk_name, root, method, args_bytes = source_, name_, root_, method_, args_
    max_output, max_depth, log_left, progress_left = output_, depth_, log_, progress_
    seed_a, seed_b = seed_a_, seed_b_
    wrapped["math.randomseed"]()
    thread = create(main)
    hosts[thread] = true
end

-- step(reply, id) -> "call", name, bytes | "calls", a msgpack list of {id, name, bytes} | "log", level, text
--             | "progress", fraction, text | "done", bytes | "memory" | "failed".
-- reply: whether the host call succeeded (its bytes were put before); id: which one it was, of several.
local AT_ONCE = 64          -- what the supervisor allows to be under way (engine/protocol.py, MAX_SIDE_BY_SIDE)
local held, under_way = {}, 0       -- calls that would be too many at once, in order; how many the host knows of
local function packed(calls)
    for i = 1, #calls do held[#held + 1] = calls[i] end
    local n = #held
    if n > AT_ONCE - under_way then n = AT_ONCE - under_way end
    local parts = { pack(">BI4", 0xdd, n) }
    for i = 1, n do
        local id, name, bytes = table_unpack(held[i], 1, 3)
        parts[i + 1] = pack(">BBI4Bs2Bs4", 0x93, 0xce, id, 0xda, name, 0xc6, bytes)
    end
    held = table_move(held, n + 1, #held, 1, {})
    under_way = under_way + n
    return concat(parts)
end
local function advance(reply, id)
    if id then under_way = under_way - 1 end
    local ok, tag, a, b = raw_resume(thread, reply, id)
    if not ok then
        last_error = tag
        return rawequal(tag, OUT_OF_MEMORY) and "memory" or "failed"
    end
    if rawequal(tag, CALL) then return "call", a, b end
    if rawequal(tag, CALLS) then return "calls", packed(a) end
    if rawequal(tag, LOG) then return "log", a, b end
    if rawequal(tag, PROGRESS) then return "progress", a, b end
    return "done", tag
end
local waiting             -- a step's answer that kept log lines go ahead of
local function step(reply, id)
    if not waiting then
        if not kept_lines[1] then
            local what, a, b = advance(reply, id)
            if not kept_lines[1] then return what, a, b end
            waiting = { what, a, b }
        else
            waiting = { advance(reply, id) }
        end
    end
    local line = remove(kept_lines, 1)
    if line then return "log", line[1], line[2] end
    local what, a, b = waiting[1], waiting[2], waiting[3]
    waiting = nil
    return what, a, b
end

-- why() -> kind, message, traceback of the last "failed". Called with a little more memory than the script had.
local function why()
    local e = last_error
    if type(e) == "table" and rawequal(rawget(e, 1), FAILURE) then return e[2], e[3], "" end
    local message
    if type(e) == "string" or type(e) == "number" then
        message = raw_tostring(e)
    else
        local ok, text = pcall(tostring, e)
        message = ok and type(text) == "string" and text ~= type(e) and text
            or "(the error is a " .. type(e) .. " value)"
    end
    -- More than is shown: the supervisor cuts it after it has looked for secrets, of which a cut would leave a part.
    return "script_error", sub(message, 1, 8192), sub(traceback(thread), 1, 16384)
end

-- Half a MiB of credit, so that no run pays for a collection of what was just made. The allocator's limit still holds:
-- at it, Lua collects first (lmem.c, tryagain).
collect("restart")
collect("step", -512)
return put, begin, step, why
