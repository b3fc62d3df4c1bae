-- Coroutines: a host call inside a script's own coroutine is yielded upward until it reaches the driver.
local x = ...
local CALL, CALLS, LOG, PROGRESS, NOT_HERE = x.CALL, x.CALLS, x.LOG, x.PROGRESS, x.NOT_HERE
local error, type, rawequal, hosts = x.error, x.type, x.rawequal, x.hosts
local create, raw_resume, raw_yield, raw_close, status = x.create, x.resume, x.yield, x.close, x.status
local raw_isyieldable, raw_running, kept_lines, put_inbox = x.isyieldable, x.running, x.kept_lines, x.put_inbox

-- Invariant: exactly the script's coroutines whose yield was relayed and is not answered yet. To Lua they are
-- suspended, but they wait for the host: any other resume would answer a call that is still under way.
local waiting = x.setmetatable({}, { __mode = "k" })
local function engaged(thread) return (waiting[thread] or hosts[thread]) and status(thread) == "suspended" end

local relay
local function answer(thread, ...)
    waiting[thread] = nil
    return relay(thread, raw_resume(thread, ...))
end
function relay(thread, ok, ...)
    local tag, level, text = ...
    if ok and (rawequal(tag, CALL) or rawequal(tag, CALLS) or rawequal(tag, LOG) or rawequal(tag, PROGRESS)) then
        if not raw_isyieldable() then       -- inside a callback of C, where no host call can be made
            if rawequal(tag, CALLS) then
                put_inbox("context.parallel" .. NOT_HERE)
                return relay(thread, raw_resume(thread, false))
            end
            if rawequal(tag, CALL) then
                put_inbox(level .. NOT_HERE)
                return relay(thread, raw_resume(thread, false))
            end
            if rawequal(tag, LOG) then kept_lines[#kept_lines + 1] = { level, text } end
            return relay(thread, raw_resume(thread))
        end
        waiting[thread] = true
        return answer(thread, raw_yield(...))
    end
    return ok, ...
end
local function resume(thread, ...)
    if type(thread) ~= "thread" then error("bad argument #1 to 'resume' (coroutine expected)", 2) end
    if engaged(thread) then return false, "cannot resume non-suspended coroutine" end
    return relay(thread, raw_resume(thread, ...))
end
local function unwrap(ok, ...)
    if ok then return ... end
    error((...), 0)
end

return {
    ["coroutine.resume"] = resume,
    ["coroutine.close"] = function(thread)
        if type(thread) ~= "thread" then error("bad argument #1 to 'close' (coroutine expected)", 2) end
        if engaged(thread) then error("cannot close a coroutine that waits for the host", 2) end
        local state = status(thread)
        if state ~= "suspended" and state ~= "dead" then error("cannot close a " .. state .. " coroutine", 2) end
        return raw_close(thread)
    end,
    ["coroutine.wrap"] = function(f)
        if type(f) ~= "function" then error("bad argument #1 to 'wrap' (function expected)", 2) end
        local thread = create(f)
        return function(...) return unwrap(resume(thread, ...)) end
    end,
    ["coroutine.yield"] = function(...)
        if hosts[raw_running()] then error("attempt to yield from outside a coroutine", 2) end
        return raw_yield(...)
    end,
    ["coroutine.isyieldable"] = function(thread)
        if thread == nil then thread = raw_running() end
        if type(thread) ~= "thread" then error("bad argument #1 to 'isyieldable' (coroutine expected)", 2) end
        return not hosts[thread] and raw_isyieldable(thread)
    end,
    ["coroutine.running"] = function()
        local thread = raw_running()
        return thread, hosts[thread] or false
    end,
}
