-- `context.parallel`: functions side by side. Each is a coroutine; what they ask of the host goes out together, and
-- whichever is answered first goes on first. The host sees numbered calls and knows nothing of functions.
local x = ...
local CALL, CALLS, LOG, PROGRESS, hosts, shape = x.CALL, x.CALLS, x.LOG, x.PROGRESS, x.hosts, x.shape
local create, resume, yield, status, isyieldable = x.create, x.resume, x.yield, x.status, x.isyieldable
local error, type, rawequal, rawget, pack, next = x.error, x.type, x.rawequal, x.rawget, x.table_pack, x.next
local take_inbox = x.take_inbox
local string_pack, concat, table_move, table_unpack = x.pack, x.concat, x.table_move, x.table_unpack

local last_id = 0           -- calls are numbered through the whole run, so that a late answer finds no wrong owner

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
    local fresh = {}        -- calls that the host has not been told of yet
    local running = n

    -- Let function i go on until it waits for the host or ends.
    local function go(i, ...)
        local answer = pack(resume(threads[i], ...))
        while true do
            local tag = answer[2]
            if not answer[1] then
                errors[i] = { tag }
            elseif rawequal(tag, CALL) then
                last_id = last_id + 1
                owners[last_id] = i
                fresh[#fresh + 1] = { last_id, answer[3], answer[4] }
                return
            elseif rawequal(tag, CALLS) then            -- a parallel inside of this one
                for _, call in next, answer[3] do
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
        if id == nil then error(take_inbox(), 2) end     -- nothing can wait here: see `relay`
        local owner = owners[id]
        owners[id] = nil
        if owner then
            go(owner, ok, id)
        else
            take_inbox()        -- of a parallel that ended early, out of memory
        end
    end
    for i = 1, n do
        if errors[i] then error(errors[i][1], 0) end
    end
    return results
end

-- What the driver sends of it: a msgpack list of {number, name, arguments}.
local AT_ONCE = 64          -- what the supervisor allows to be under way (engine/protocol.py, MAX_SIDE_BY_SIDE)
local held, under_way = {}, 0       -- calls that would be too many at once, in order; how many the host knows of
local function packed(calls)
    for i = 1, #calls do held[#held + 1] = calls[i] end
    local n = #held
    if n > AT_ONCE - under_way then n = AT_ONCE - under_way end
    local parts = { string_pack(">BI4", 0xdd, n) }
    for i = 1, n do
        local id, name, bytes = table_unpack(held[i], 1, 3)
        parts[i + 1] = string_pack(">BBI4Bs2Bs4", 0x93, 0xce, id, 0xda, name, 0xc6, bytes)
    end
    held = table_move(held, n + 1, #held, 1, {})
    under_way = under_way + n
    return concat(parts)
end
local function answered() under_way = under_way - 1 end

return { parallel = parallel, packed = packed, answered = answered }
