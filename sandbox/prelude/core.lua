-- The Lua half of a run: the script's environment, the value codec, host calls by yield, and the driver.
--
-- Trusted code, loaded into a fresh state before the script. It keeps what it needs as locals, empties the real
-- globals, and returns five functions to the host: put (store bytes), begin (prepare a run), step (resume until an
-- event), why (how it failed), give (the code of a library). Only byte strings, booleans and numbers cross; no host
-- object ever enters this state.
--
-- Every run pays for this file: what only some runs need is in modules, which are loaded on first use. `modules` (name
-- -> bytecode) and `cut` (see allowlist.py) are defined before it (vm.py, core_source).
local real = _G
local type, next, rawget, rawset, rawequal = type, next, rawget, rawset, rawequal
local raw_error, raw_load, raw_setmetatable, math_type = error, load, setmetatable, math.type
local raw_getmetatable, raw_randomseed, random = debug.getmetatable, math.randomseed, math.random
local create, raw_resume, raw_yield, raw_isyieldable = coroutine.create, coroutine.resume, coroutine.yield, coroutine.isyieldable
local byte, sub, pack, unpack = string.byte, string.sub, string.pack, string.unpack
local find, char, utf8_len = string.find, string.char, utf8.len
local concat, remove, table_unpack, collect = table.concat, table.remove, table.unpack, collectgarbage
local loaded_packages = package.loaded
-- Passed to modules. Captured here, because the script may replace the globals; and put into a table, because each
-- local that a function captures costs every run (lfunc.c, luaF_findupval).
local kit = {
    error = error, pcall = pcall, select = select, type = type, next = next, tonumber = tonumber, tostring = tostring,
    rawget = rawget, rawset = rawset, rawequal = rawequal, setmetatable = setmetatable, getmetatable = raw_getmetatable,
    traceback = debug.traceback, collect = collect,
    create = create, resume = raw_resume, yield = raw_yield, isyieldable = raw_isyieldable,
    running = coroutine.running, status = coroutine.status, close = coroutine.close, os_time = os.time,
    byte = byte, char = char, find = find, format = string.format, gsub = string.gsub, match = string.match, pack = pack,
    rep = string.rep, sub = sub, unpack = unpack, utf8_char = utf8.char, utf8_len = utf8_len, utf8_offset = utf8.offset,
    math_type = math_type, randomseed = raw_randomseed, random = random, os_date = os.date,
    concat = concat, remove = remove, sort = table.sort, table_pack = table.pack, table_unpack = table_unpack,
}
-- From here on a global would be the script's: any use of one is an error.
local _ENV = nil

-- Raises an error for an option that is not among `known`, a text of names with ", " between and around them.
function kit.check_options(call, options, known, level)
    for name in next, options or {} do
        local named = type(name) == "string"
        if not named or #name > 64 or not find(known, ", " .. name .. ",", 1, true) then
            local shown = named and " " .. sub(name, 1, 64) or " whose name is a " .. type(name)
            raw_error(call .. ": there is no option" .. shown .. "; the options are " .. sub(known, 3, -3), level + 1)
        end
    end
end

local OUT_OF_MEMORY = "not enough memory"     -- the error of a refused allocation (lstate.c, memerrmsg)
local CALL, CALLS, LOG, PROGRESS = {}, {}, {}, {}   -- tags of what a run yields to the driver; no script has one
local NOT_HERE = " cannot be called here: inside a callback of sort, gsub or tostring nothing can wait"
local WEAK = { __mode = "k" }
local ARRAYS = raw_setmetatable({}, WEAK)   -- tables that are lists even when empty
local NULL = raw_setmetatable({}, {
    __tostring = function() return "null" end,
    __newindex = function() raw_error("json.null cannot be changed", 2) end,
    __metatable = false,
})

local max_output, max_depth       -- limits of the run, set by begin
local inbox
local hosts = raw_setmetatable({}, WEAK)    -- coroutines of the run itself, which the script must not see as such
local kept_lines = {}     -- log lines from places that cannot yield; sent with the next step
kit.ARRAYS, kit.NULL, kit.hosts, kit.kept_lines = ARRAYS, NULL, hosts, kept_lines
kit.CALL, kit.CALLS, kit.LOG, kit.PROGRESS = CALL, CALLS, LOG, PROGRESS
kit.OUT_OF_MEMORY, kit.NOT_HERE = OUT_OF_MEMORY, NOT_HERE

-- Modules ----------------------------------------------------------------------------------------------------------
local native                -- below: what the worker itself answers
local needed = {}           -- name -> what the module returned
function kit.put_inbox(text) inbox = text end
function kit.take_inbox()
    local text = inbox
    inbox = nil
    return text
end
local function need(name)
    local module = needed[name]
    if module then return module end
    -- A library that the script's text does not name is given on demand.
    local code = modules[name] or native(name, "library:code", name)
    local chunk, message = raw_load(code, "=[engine]", "b", nil)
    if not chunk then raw_error(message, 0) end     -- out of memory, which `message` says
    module = chunk(kit, raw_load)
    needed[name] = module
    return module
end
kit.need = need
-- A function that loads its module when it is called. A tail call, so that errors name the script's line.
local function stub(name, member)
    return function(...) return need(name)[member](...) end
end
-- A library that is loaded when one of its members is first read: a table, where stubs would be a closure a member.
local unloaded = {}         -- Invariant: the libraries that are not loaded yet -> their names
local function load_library(library)
    local members = need(unloaded[library])
    unloaded[library] = nil
    for member, f in next, members do
        if rawget(library, member) == nil then library[member] = f end     -- what a script put there stays
    end
end
local LIBRARY = {
    __index = function(library, member)
        if unloaded[library] then load_library(library) end
        return rawget(library, member)
    end,
    __pairs = function(library)
        if unloaded[library] then load_library(library) end
        return next, library, nil
    end,
    __metatable = false,
}
local function library(name)
    local made = raw_setmetatable({}, LIBRARY)
    unloaded[made] = name
    return made
end

-- Values ---------------------------------------------------------------------------------------------------------
-- MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), restricted to what JSON has, plus bin.

local decode, encode, shape
do      -- a block: its upvalues are closed at the end, so later closures need not walk past them (luaF_findupval)
-- decode(s, pos) -> value, next position. The input comes from the supervisor, which bounds depth and size.
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
-- Formats of string.unpack by first byte.
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
function shape(t)
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

-- encode(value, mended) -> bytes | nil, kind, reason. kind is "wrong_shape", "output_limit", "depth_limit" or "broken";
-- the reason names the path in the value. `mended` makes text of a string that is not UTF-8; without it, that is "broken".
local buffer, used, open, kind, reason, mend
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
    if used + n > max_output then return emit(s) end   -- refuse it before scanning it
    if utf8_len(s) == nil then
        if not mend then return refuse("broken", "is a string that is not UTF-8") end
        s = mend(s)
        n = #s
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
    if rawequal(t, NULL) then return emit("\xc0") end     -- not ==, which would call a script's __eq
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
function encode(value, mended)
    buffer, used, open, mend = {}, 0, {}, mended
    local ok = put_value(value, 0)
    local bytes = ok and concat(buffer)
    buffer, open = nil, nil
    if ok then return bytes end
    return nil, kind, reason
end
end

-- Host calls -------------------------------------------------------------------------------------------------------
-- lua_error turns exactly this text into a true out-of-memory error (lapi.c), so a script that raises it gets another
-- text: an uncaught OUT_OF_MEMORY is then always the allocator's.
local function own(message)
    if rawequal(message, OUT_OF_MEMORY) then return OUT_OF_MEMORY .. " (raised by the script)" end
    return message
end

-- host_call(name, arguments) -> the host's value. Refusals and failures are raised where the script made the call.
local function host_call(name, arguments)
    if not raw_isyieldable() then
        raw_error(name .. NOT_HERE, 3)
    end
    local bytes, what, why = encode(arguments)
    if what == "broken" then bytes, what, why = need("mend").arguments(name, arguments, why) end
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

-- native(shown, name, bytes) -> bytes: what the worker answers itself (sandbox/natives), which is no host call. Its name
-- has a colon, and no host call's has. `shown` is what the script called; `level` is where, as for `error`, if not there
-- where the caller of this was called.
function native(shown, name, bytes, level)
    if not raw_isyieldable() then raw_error(shown .. NOT_HERE, level or 3) end
    local ok = raw_yield(CALL, name, bytes)
    local reply = inbox
    inbox = nil
    if ok then return reply end
    raw_error(reply == name .. NOT_HERE and shown .. NOT_HERE or shown .. ": " .. reply, level or 3)
end

kit.own, kit.shape, kit.host_call, kit.native, kit.decode, kit.encode = own, shape, host_call, native, decode, encode

local function named(name, first, key, options)
    if type(first) == "table" then
        if type(rawget(first, "call_tool")) == "function" then
            raw_error(name .. ": call it with a dot, " .. name .. "(...), not with a colon", 3)
        end
        return first
    end
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
-- The tools that the run may call, so that a script can list them. Any other name can be called, too: the host refuses
-- it with a reason.
local function tools_table(names)
    local tools = {}
    for _, name in next, names do tools[name] = tool_caller(name) end
    return raw_setmetatable(tools, { __index = function(_, name) return tool_caller(name) end, __metatable = false })
end

local function build_context(config, tools)
    return {
        config = config,
        tools = tools_table(tools),
        call_tool = function(name, params)
            local answer = host_call("context.call_tool", { name = name, params = params })
            return answer
        end,
        parallel = stub("parallel", "parallel"),
        search = function(query, options)
            local found = host_call("context.search", named("context.search", query, "query", options))
            return found
        end,
        get = function(id, options)
            local document = host_call("context.get", named("context.get", id, "id", options))
            return document
        end,
        sources = function()
            local sources = host_call("context.sources", {})
            return sources
        end,
        progress = stub("log", "progress"),
        team = library("team"),
    }
end

-- The environment --------------------------------------------------------------------------------------------------
-- A table of its own: lupa looks up `debug` in the interpreter's globals at each call, so these stay empty.
local env = cut(real, stub)
env._G = env
kit.env = env
env.log = { debug = stub("log", "debug"), info = stub("log", "info"), warn = stub("log", "warn"), error = stub("log", "error") }
env.json = {
    parse = stub("json", "decode"), decode = stub("json", "decode"), encode = stub("json", "encode"),
    array = stub("json", "array"), null = NULL,
}
env.base64 = { encode = stub("base64", "encode"), decode = stub("base64", "decode") }
env.crypto = { sha256 = stub("crypto", "sha256"), hmac_sha256 = stub("crypto", "hmac_sha256") }
-- vm.py inserts the libraries that are loaded whole here, from the list in allowlist.py:
--[[libraries]]
-- vm.py inserts the functions that make host calls here, from the list in wire/surface.py:
--[[host calls]]
env.http.basic_auth = stub("http", "basic_auth")
env.retry = stub("retry", "retry")
-- Placeholders of secrets: filled by main; the host puts the values into requests.
local secret_names = {}
env.secrets = raw_setmetatable(secret_names, { __index = stub("log", "no_secret"), __metatable = false })

-- In test mode, testing.py of the sandbox puts what tests need here, and how a test file is run into `main`:
--[[test mode: environment]]

raw_getmetatable("").__metatable = false    -- strings index the script's own string table; their metatable is protected
for name in next, loaded_packages do loaded_packages[name] = nil end

-- The driver ---------------------------------------------------------------------------------------------------------
local root, method, source, mode, chunk_name, args_bytes      -- of the run, set by begin
local FAILURE = {}          -- tag of the driver's own errors about the script's answer; no script can reach it
local function fail(what, message)
    raw_error({ FAILURE, what, message }, 0)
end

local function declared_table(chunk)
    local returned = chunk()
    local declared = rawget(env, root)
    if type(declared) ~= "table" then declared = returned end
    if type(declared) ~= "table" then
        local other = root == "agent" and "tool" or "agent"
        fail("wrong_shape", "the script neither sets the global '" .. root .. "' to a table nor returns one"
            .. (type(rawget(env, other)) == "table" and "; it sets '" .. other .. "'" or ""))
    end
    return declared
end

local function main()
    local chunk, message = raw_load(source, "=" .. chunk_name, mode, env)
    source = nil
    if not chunk then raw_error(message, 0) end
    local count = byte(args_bytes, 1) & 15            -- a list of fewer than 16: its length is in the first byte
    local given, pos = decode(args_bytes, 1)
    local config, tools, secrets, caller
    config, pos = decode(args_bytes, pos)
    tools, pos = decode(args_bytes, pos)
    secrets, pos = decode(args_bytes, pos)
    if pos <= #args_bytes then caller = decode(args_bytes, pos) end     -- only if the script's text has this word
    args_bytes = nil
    for name, placeholder in next, secrets do rawset(secret_names, name, placeholder) end
    --[[test mode: main]]
    local declared = declared_table(chunk)
    local answer
    if method == "" then
        answer = need("describe").describe(declared)
    else
        local f = declared[method]
        if type(f) ~= "function" then
            fail("wrong_shape", root .. "." .. method .. " is not a function but a " .. type(f) .. " value")
        end
        local context
        if root == "connector" then             -- the first one becomes context.checkpoint
            context = {
                config = config, checkpoint = given[1], emit = stub("scan", "emit"), deleted = stub("scan", "deleted"),
                parallel = stub("parallel", "parallel"), progress = stub("log", "progress"),
            }
            given[1], given[2], count = given[2], nil, 1
        else
            context = build_context(config, tools)
        end
        if caller then context.caller = caller end
        if method == "complete" then            -- the last one becomes context.arguments: the arguments typed so far
            context.arguments, count = given[count], count - 1
        end
        given[count + 1] = context
        answer = f(table_unpack(given, 1, count + 1))
    end
    local bytes, what, why = encode(answer)
    if not bytes then
        local where = method == "" and root or "the answer of " .. root .. "." .. method .. ": value"
        if what == "broken" then bytes, what, why = need("mend").answer(answer, where, why) end
        if not bytes then fail(what, where .. (find(why, "^[%[.]") and "" or " ") .. why) end
    end
    return bytes
end

local thread, last_error

local function put(bytes) inbox = bytes end
local function give(name, code) modules[name] = code end

local function begin(source_, mode_, name_, root_, method_, args_, output_, depth_, log_, progress_, seed_a_, seed_b_, key_,
        deadline_)
    source, mode, chunk_name, root, method, args_bytes = source_, mode_, name_, root_, method_, args_
    max_output, max_depth = output_, depth_
    kit.max_output, kit.max_depth, kit.log_left, kit.progress_left, kit.method = output_, depth_, log_, progress_, method_
    raw_randomseed(seed_a_, seed_b_)
    kit.seed_a, kit.seed_b, kit.key, kit.deadline = random(0), random(0), key_, deadline_
    thread = create(main)
    hosts[thread] = true
end

-- How many broken parts of texts became U+FFFD.
local function replaced() return needed.mend and needed.mend.count or 0 end
-- step(reply, id) -> "call", name, bytes | "calls", a msgpack list of {id, name, bytes} | "log", level, text
--             | "progress", fraction, text | "done", bytes, replaced | "memory" | "failed".
-- reply: whether the host call succeeded (its bytes were put before); id: the number of that call, if numbered.
local function advance(reply, id)
    if id then need("parallel").answered(id) end
    local ok, tag, a, b = raw_resume(thread, reply, id)
    if not ok then
        last_error = tag
        return rawequal(tag, OUT_OF_MEMORY) and "memory" or "failed"
    end
    if rawequal(tag, CALL) then return "call", a, b end
    if rawequal(tag, CALLS) then
        local bytes = need("parallel").packed(a)
        if bytes then return "calls", bytes end
        inbox = "context.parallel: no host call is under way"
        return advance(false)       -- raised in the function that waits
    end
    if rawequal(tag, LOG) then return "log", a, b end
    if rawequal(tag, PROGRESS) then return "progress", a, b end
    return "done", tag, replaced()
end
local waiting             -- the result of a step, delayed until kept log lines are sent
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
-- why() -> kind, message, traceback, replaced of the last "failed". Called with a little more memory than the script's
-- bound.
local function why()
    if type(last_error) == "table" and rawequal(rawget(last_error, 1), FAILURE) then
        return last_error[2], sub(last_error[3], 1, 8192), "", replaced()        -- it contains a path, which may be long
    end
    local kind, message, traceback = need("failure").described(last_error, thread)
    return kind, message, traceback, replaced()
end

-- Half a MiB of credit, so that no run pays for collecting what was just made. The allocator's limit still holds: at
-- it, Lua collects first (lmem.c, tryagain).
collect("restart")
collect("step", -512)
return put, begin, step, why, give
