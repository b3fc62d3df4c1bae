-- Test mode: what `engine test` adds to a run. A test file runs once to list its tests and once for each test, every
-- time in a fresh state, so nothing of a test reaches another. Loaded only by `testing.py` of the sandbox.
local x = ...
local env, error, type, next, rawget, rawset = x.env, x.error, x.type, x.next, x.rawget, x.rawset
local rawequal, pcall, setmetatable, isyieldable, yield = x.rawequal, x.pcall, x.setmetatable, x.isyieldable, x.yield
local resume, status, getinfo, traceback = x.resume, x.status, x.getinfo, x.traceback
local find, match, gsub, sub, byte, utf8_len, concat = x.find, x.match, x.gsub, x.sub, x.byte, x.utf8_len, x.concat
local lower, table_unpack, table_pack, hosts, ARRAYS = x.lower, x.table_unpack, x.table_pack, x.hosts, x.ARRAYS
local encode, decode, own, need, unmocked = x.encode, x.decode, x.own, x.need, x.unmocked
local shown = need("wrapped").tostring

-- Each test runs the file again, so the cost grows with the square of their number.
local MAX_TESTS = 1000
-- Bytes of one name, of a test's name with those around it, and of a reason or message.
local MAX_NAME, MAX_WHOLE_NAME, MAX_MESSAGE = 200, 800, 8192
local MAX_NESTED = 16
local MAX_FRAMES = 20

-- Text -------------------------------------------------------------------------------------------------------------
-- Any text as UTF-8 of at most `most` bytes.
local function clean(text, most)
    local cut = sub(text, 1, most)
    while cut ~= "" and #cut < #text do         -- not inside a character
        local next_byte = byte(text, #cut + 1)
        if next_byte < 0x80 or next_byte >= 0xc0 then break end
        cut = sub(cut, 1, -2)
    end
    if not utf8_len(cut) then cut = need("mend").text(cut) end
    return #cut < #text and cut .. "…" or cut
end

-- The file and line that run now: those of the first frame with a line, as frames of the prelude have none. `thread` is
-- another coroutine, or nil.
local function place(thread)
    for level = thread and 0 or 2, 60 do
        local info
        if thread then info = getinfo(thread, level, "Sl") else info = getinfo(level, "Sl") end
        if not info then return nil end
        if info.currentline > 0 then return info.short_src, info.currentline end
    end
end

-- Frames of scripts in a traceback, one a line.
local function frames(text)
    local kept, at = {}, 1
    while #kept < MAX_FRAMES do
        local _, stop, frame = find(text, "\n%s*([^\n]*)", at)
        if not stop then break end
        if match(frame, "^[^%[?(].-:%d+: in ") then
            kept[#kept + 1] = clean(frame, 300)
        end
        at = stop + 1
    end
    -- The outermost one is the test: Lua calls it by the field that `run` takes it from.
    if kept[1] then kept[#kept] = gsub(kept[#kept], " in field 'f'$", " in the test") end
    return concat(kept, "\n")
end

-- Failures ---------------------------------------------------------------------------------------------------------
local SKIP = setmetatable({}, { __tostring = function() return "the test was skipped" end, __metatable = false })
local FAILURE = { __tostring = function(failure) return failure.message end, __metatable = false }
local failures = setmetatable({}, { __mode = "k" })
-- The first failure of the test: one that a pcall of the script caught is one, too.
local first
local skipped

local function fail(message)
    local file, line = place()
    local failure = setmetatable({ message = clean(message, MAX_MESSAGE), file = file, line = line }, FAILURE)
    failures[failure] = true
    first = first or failure
    error(failure, 0)
end

-- attempt(f) -> nil, or what went wrong. In a coroutine of its own, whose stack is still there after an error.
local function attempt(f)
    local thread = x.create(f)
    hosts[thread] = true
    local answer = table_pack(resume(thread))
    while answer[1] and status(thread) == "suspended" do
        answer = table_pack(resume(thread, yield(table_unpack(answer, 2, answer.n))))
    end
    if answer[1] then return nil end
    local e = answer[2]
    if rawequal(e, x.OUT_OF_MEMORY) then error(e, 0) end     -- ends the run as it would anywhere
    if rawequal(e, SKIP) then return nil end
    if failures[e] then
        local trace = frames(traceback(thread))
        if not find(trace, "\n", 1, true) then trace = "" end     -- one frame, which the line says
        return { message = e.message, file = e.file, line = e.line, traceback = trace }
    end
    local file, line = place(thread)
    local _, message, trace = need("failure").described(e, thread)
    return { message = clean(message, MAX_MESSAGE), file = file, line = line, traceback = frames(trace), is_error = true }
end

-- Declaring --------------------------------------------------------------------------------------------------------
local tests = {}
local group = { before = {}, after = {}, depth = 0 }
local running = false

local function declared(what, name, f)
    if running then error(what .. " cannot be called inside a test", 3) end
    if type(name) ~= "string" and type(name) ~= "number" then
        error(what .. ": the name must be a string, got " .. type(name), 3)
    end
    if type(f) ~= "function" then error(what .. ": a function is expected after the name, got " .. type(f), 3) end
    return clean(shown(name), MAX_NAME)
end

local function add(name, f, skip)
    if #tests >= MAX_TESTS then
        error("a file may have " .. MAX_TESTS .. " tests; put the others into another file", 3)
    end
    if group.name then name = clean(group.name .. " > " .. name, MAX_WHOLE_NAME) end
    local _, line = place()
    tests[#tests + 1] = { name = name, f = f, group = group, skip = skip or group.skip, line = line }
end

local function describe(name, f, skip)
    if group.depth >= MAX_NESTED then error("describe: nested deeper than " .. MAX_NESTED .. " levels", 3) end
    local outer = group
    local _ <close> = setmetatable({}, { __close = function() group = outer end })      -- after an error, too
    if outer.name then name = clean(outer.name .. " > " .. name, MAX_WHOLE_NAME) end
    group = {
        name = name, outer = outer, before = {}, after = {}, depth = outer.depth + 1, skip = skip or outer.skip,
    }
    f()
end

local function callable(members, f)
    return setmetatable(members, { __call = function(_, ...) return f(...) end, __metatable = false })
end

env.describe = callable({
    skip = function(name, f) describe(declared("describe.skip", name, f), f, "skipped") end,
}, function(name, f) describe(declared("describe", name, f), f) end)
env.it = callable({
    skip = function(name, f) add(declared("it.skip", name, f or env.it.skip), f, "skipped") end,
}, function(name, f) add(declared("it", name, f), f) end)

local function hook(what, list)
    return function(f)
        if running then error(what .. " cannot be called inside a test", 2) end
        if type(f) ~= "function" then error(what .. ": a function is expected, got " .. type(f), 2) end
        list()[#list() + 1] = f
    end
end
env.before_each = hook("before_each", function() return group.before end)
env.after_each = hook("after_each", function() return group.after end)

function env.skip(reason)
    if not running then error("skip can be called inside a test only; a whole test is skipped by it.skip", 2) end
    skipped = reason == nil and "skipped" or clean(shown(reason), MAX_NAME)
    error(SKIP, 0)
end

env.expect = need("expect").expect(fail, place, function(f)
    -- For to_raise: a failure inside `f` is what was expected.
    local before = first
    local answer = table_pack(pcall(f))
    if not answer[1] and rawequal(answer[2], x.OUT_OF_MEMORY) then error(answer[2], 0) end
    if not answer[1] and rawequal(answer[2], SKIP) then error(SKIP, 0) end
    if not answer[1] and failures[answer[2]] then first = before end
    return answer[1], answer[2]
end)

-- Mocks ------------------------------------------------------------------------------------------------------------
local replies, made = {}, {}        -- by name: the reply, in a table of its own; the arguments of each call
local TOOLS = "context.tools."

local function checked(what, name)
    if type(name) == "string" then
        if sub(name, 1, #TOOLS) == TOOLS and #name > #TOOLS then return end
        if find(x.host_names, " " .. name .. " ", 1, true) and not find(name, " ", 1, true) then return end
    end
    error(what .. ": " .. (type(name) == "string" and "there is no host call '" .. clean(name, 64) .. "'"
        or "the name of a host call is expected, got " .. type(name)) .. "; there are" .. gsub(x.host_names, " $", "")
        .. " and " .. TOOLS .. "NAME", 3)
end

-- What is wrong with a reply for a call of `http`; nil if nothing is.
local HTTP_REPLY = { status = true, ok = true, headers = true, body = true, json = true, url = true }
local function wrong_http(name, reply)
    if type(reply) == "string" then return nil end
    local its = "mock(\"" .. name .. "\"): its reply "
    if type(reply) ~= "table" then return its .. "must be a table or a string, got " .. type(reply) end
    for key in next, reply do
        if not HTTP_REPLY[key] then
            return its .. "has the field " .. clean(shown(key), 64) .. "; there are status, headers, body, json, url"
        end
    end
end

-- What `http` answers, made whole: a mock says only what its test is about.
local function http_reply(given, reply)
    if type(reply) == "string" then reply = { body = reply } end
    local whole = {}
    for key, value in next, reply do whole[key] = value end
    local headers = {}
    for name, value in next, type(whole.headers) == "table" and whole.headers or {} do
        headers[type(name) == "string" and lower(name) or name] = value
    end
    whole.status = whole.status or 200
    whole.headers, whole.url = headers, whole.url or given.url
    if type(whole.status) == "number" then whole.ok = whole.status >= 200 and whole.status < 300 end
    if whole.json ~= nil then
        headers["content-type"] = headers["content-type"] or "application/json"
        whole.body = whole.body or need("json").encode(whole.json)
    elseif type(whole.body) == "string" and find(headers["content-type"] or "json", "json", 1, true) then
        local ok, value = pcall(need("json").decode, whole.body)
        if ok then whole.json = value end
    end
    whole.body = whole.body or ""
    return whole
end

local function wrong(message)
    local file, line = place()
    local failure = setmetatable({ message = clean(message, MAX_MESSAGE), file = file, line = line }, FAILURE)
    failures[failure] = true
    first = first or failure
end

local function copied(name, value)
    local bytes, what, why = encode(value)
    if what == "broken" then bytes, what, why = encode(value, need("mend").text) end
    if bytes then return (decode(bytes, 1)) end
    local message = "mock(\"" .. name .. "\"): its reply " .. (find(why, "^[%[.]") and "reply" or "") .. why
    wrong(message)
    error(message, 0)
end

local function record(name, given)
    local list = made[name]
    if not list then
        list = {}
        made[name] = list
    end
    list[#list + 1] = given
end

local EXAMPLES = { ["sleep"] = "", ["context.search"] = ", {}", ["context.sources"] = ", {}" }
local function example(name)
    if sub(name, 1, 5) == "http." then return ', { status = 200, body = "..." }' end
    return EXAMPLES[name] or ", ..."
end

-- In place of the driver's host_call, and called as it is: an error of level 3 names the script's line.
local function host_call(name, arguments)
    if not isyieldable() then error(name .. x.NOT_HERE, 3) end
    if name == "json.schema" and not replies[name] then return unmocked(name, arguments) end     -- computes only
    local bytes, what, why = encode(arguments)
    if what == "broken" then bytes, what, why = need("mend").arguments(name, arguments, why) end
    if not bytes then error(name .. ": the argument " .. why, 3) end
    local given = decode(bytes, 1)
    local mocked, answered = name, replies[name]
    record(name, given)
    if name == "context.call_tool" and type(given.name) == "string" then
        record(TOOLS .. given.name, given.params)
        if replies[TOOLS .. given.name] then
            mocked, given = TOOLS .. given.name, given.params
            answered = replies[mocked]
        elseif not answered then
            mocked = TOOLS .. given.name
        end
    end
    if not answered then
        local message = mocked .. " has no mock here; before it: mock(\"" .. mocked .. "\"" .. example(mocked) .. ")"
        wrong(message)
        error(message, 3)
    end
    local reply = answered[1]
    if type(reply) == "function" then
        local ok
        ok, reply = pcall(reply, given)
        if not ok then
            if failures[reply] or rawequal(reply, SKIP) or rawequal(reply, x.OUT_OF_MEMORY) then error(reply, 0) end
            local text = gsub(shown(reply), "^[^:\n]+:%d+: ", "", 1)
            if sub(text, 1, #name + 1) ~= name .. ":" then text = name .. ": " .. text end
            error(own(clean(text, 2048)), 3)       -- as the host's own errors
        end
    end
    if sub(name, 1, 5) == "http." then
        local message = wrong_http(name, reply)
        if message then
            wrong(message)
            error(message, 0)
        end
        reply = http_reply(given, reply)
    end
    return copied(name, reply)
end

env.mock = callable({
    calls = function(name)
        checked("mock.calls", name)
        local list = {}
        ARRAYS[list] = true
        for i = 1, #(made[name] or list) do list[i] = made[name][i] end
        return list
    end,
    secrets = function(values)
        if type(values) ~= "table" then error("mock.secrets: a table is expected, got " .. type(values), 2) end
        for name, value in next, values do rawset(x.secret_names, name, value) end
    end,
}, function(name, reply)
    checked("mock", name)
    local message = sub(name, 1, 5) == "http." and type(reply) ~= "function" and wrong_http(name, reply)
    if message then error(message, 2) end
    replies[name] = { reply }
end)

local CONTEXT = { config = true, tools = true, arguments = true }
function env.test_context(options)
    if options == nil then options = {} end
    if type(options) ~= "table" then error("test_context: a table is expected, got " .. type(options), 2) end
    for key in next, options do
        if not CONTEXT[key] then
            error("test_context: there is no option " .. clean(shown(key), 64) .. "; there are config, tools, arguments", 2)
        end
    end
    local context = x.build_context(options.config or {}, options.tools or {})
    context.arguments = options.arguments
    return context
end

-- Running ----------------------------------------------------------------------------------------------------------
-- The groups of a test, the outermost first.
local function groups_of(test)
    local chain = {}
    local inner = test.group
    while inner do
        chain[#chain + 1] = inner
        inner = inner.outer
    end
    local turned = {}
    for i = #chain, 1, -1 do turned[#turned + 1] = chain[i] end
    return turned
end

local function run(test)
    local chain = groups_of(test)
    running = true
    local found = attempt(function()
        for i = 1, #chain do
            for k = 1, #chain[i].before do chain[i].before[k]() end
        end
        test.f()
    end)
    for i = #chain, 1, -1 do
        for k = 1, #chain[i].after do
            local late = attempt(chain[i].after[k])
            found = found or late
        end
    end
    if not found and first then found = { message = first.message, file = first.file, line = first.line } end
    if found then
        found.status = "failed"
        return found
    end
    return { status = skipped and "skipped" or "passed", message = skipped }
end

local function listed()
    local list = {}
    ARRAYS[list] = true
    for i = 1, #tests do
        list[i] = { name = tests[i].name, line = tests[i].line, skip = tests[i].skip }
    end
    return list
end

-- main(chunk, given, method) -> the answer as bytes. `list`: the tests, and the lines of each file of given.cover that can
-- be executed; `run`: the result of test number given.test, whose name is given.name.
local function main(chunk, given, method)
    local coverage = given.cover and need("coverage")
    if coverage and method == "run" then coverage.begin(given.cover) end
    chunk()
    local answer
    if method == "list" then
        answer = { tests = listed(), lines = coverage and coverage.executable(given.cover) or nil }
    else
        local test = tests[given.test]
        if not test or test.name ~= given.name then
            error("the file declares other tests than when it was listed: test " .. given.test .. " was '" .. given.name
                .. "' and is " .. (test and "'" .. test.name .. "'" or "missing"), 0)
        end
        answer = run(test)
        if coverage then answer.hits = coverage.hits() end
    end
    local bytes, _, why = encode(answer, need("mend").text)
    if not bytes then error("the result of the test " .. why, 0) end
    return bytes
end

return { main = main, host_call = host_call }
