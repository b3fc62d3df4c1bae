-- `context.parallel`: concurrent functions. Each is a coroutine; their host calls are sent together, and the one that
-- is answered first is resumed first. The host sees numbered calls, not functions.
local x = ...
local CALL, CALLS, LOG, PROGRESS, hosts, shape = x.CALL, x.CALLS, x.LOG, x.PROGRESS, x.hosts, x.shape
local create, resume, yield, isyieldable = x.create, x.resume, x.yield, x.isyieldable
local error, type, rawequal, rawget, pack = x.error, x.type, x.rawequal, x.rawget, x.table_pack
local take_inbox, find = x.take_inbox, x.find
local string_pack, concat, table_unpack = x.pack, x.concat, x.table_unpack

local last_id = 0           -- numbers are never reused within a run, so that a late answer cannot reach a wrong owner

local function checked(functions)
    if type(functions) ~= "table" then
        error("context.parallel: a list of functions is expected, got " .. type(functions), 3)
    end
    local what, n = shape(functions)
    if what ~= "list" and n ~= 0 then error("context.parallel: a list of functions is expected", 3) end
    for i = 1, n do
        local f = rawget(functions, i)
        if type(f) ~= "function" then
            error("context.parallel: item " .. i .. " is not a function but a " .. type(f) .. " value", 3)
        end
    end
    if not isyieldable() then error("context.parallel" .. x.NOT_HERE, 3) end
    return n
end

local function parallel(functions)
    local n = checked(functions)
    local results, errors, threads = { n = n }, {}, {}
    local owners = {}       -- number of a call under way -> which function waits for it
    local fresh = {}        -- calls that are not yielded to the driver yet
    local running = n

    -- Resume function i until it waits for the host or ends.
    local function go(i, ...)
        local answer = pack(resume(threads[i], ...))
        while true do
            local tag = answer[2]
            if not answer[1] then
                errors[i] = { tag }
            elseif rawequal(tag, CALL) and find(answer[3], ":", 1, true) then   -- answered by the worker, at once
                answer = pack(resume(threads[i], yield(tag, answer[3], answer[4])))
                goto again
            elseif rawequal(tag, CALL) then
                last_id = last_id + 1
                owners[last_id] = i
                fresh[#fresh + 1] = { last_id, answer[3], answer[4] }
                return
            elseif rawequal(tag, CALLS) then            -- a nested parallel
                for k = 1, #answer[3] do
                    local call = answer[3][k]
                    owners[call[1]] = i
                    fresh[#fresh + 1] = call
                end
                return
            elseif rawequal(tag, LOG) or rawequal(tag, PROGRESS) then
                yield(tag, answer[3], answer[4])
                answer = pack(resume(threads[i]))
                goto again
            else
                results[i] = tag
            end
            running = running - 1
            hosts[threads[i]] = nil
            do return end
            ::again::
        end
    end

    for i = 1, n do
        threads[i] = create(rawget(functions, i))
        hosts[threads[i]] = true
        go(i)
    end
    while running > 0 do
        local batch = fresh
        fresh = {}
        local ok, id = yield(CALLS, batch)
        if id == nil then error(take_inbox(), 2) end     -- this place cannot wait: see `relay`
        local owner = owners[id]
        owners[id] = nil
        if owner then
            go(owner, ok, id)
        else
            take_inbox()        -- the owner ended early, out of memory
        end
    end
    for i = 1, n do
        if errors[i] then error(errors[i][1], 0) end
    end
    return results
end

-- The driver's message: a msgpack list of {number, name, arguments}, or nil if no call is under way. Numbers must grow,
-- so calls beyond a bound are queued in order: too many calls, or more bytes of arguments than one call may have. So
-- one message, and all arguments that the host holds for a run, stay within the bound of one call.
local AT_ONCE = 64          -- the supervisor's bound (engine/workers/protocol.py, MAX_SIDE_BY_SIDE)
local BYTES_AT_ONCE = x.max_output
local held, first, last = {}, 1, 0      -- queued calls: held[first] to held[last]
local sizes, under_way, bytes_under_way = {}, 0, 0      -- sizes: number of a call under way -> bytes of its arguments
local function packed(calls)
    for i = 1, #calls do held[last + i] = calls[i] end
    last = last + #calls
    local parts, n = { "" }, 0
    while first <= last and under_way < AT_ONCE do
        local id, name, bytes = table_unpack(held[first], 1, 3)
        if under_way > 0 and bytes_under_way + #bytes > BYTES_AT_ONCE then break end
        held[first], sizes[id] = nil, #bytes
        first, n = first + 1, n + 1
        under_way, bytes_under_way = under_way + 1, bytes_under_way + #bytes
        parts[n + 1] = string_pack(">BBI4Bs2Bs4", 0x93, 0xce, id, 0xda, name, 0xc6, bytes)
    end
    if under_way == 0 then return nil end
    parts[1] = string_pack(">BI4", 0xdd, n)
    return concat(parts)
end
local function answered(id)
    under_way, bytes_under_way = under_way - 1, bytes_under_way - sizes[id]
    sizes[id] = nil
end

return { parallel = parallel, packed = packed, answered = answered }
