-- `retry`: calls a function again after it failed, with longer and longer waits, as long as the run has time for them.
local x = ...
local native, host_call, error, pcall, type, math_type = x.native, x.host_call, x.error, x.pcall, x.type, x.math_type
local rawget, random, unpack, isyieldable, NOT_HERE = x.rawget, x.random, x.unpack, x.isyieldable, x.NOT_HERE
local table_pack, table_unpack, deadline = x.table_pack, x.table_unpack, x.deadline

local function number(options, name, default, least, most)
    local value = options and rawget(options, name)
    if value == nil then return default end
    if not math_type(value) or not (value >= least and value <= most) then
        error("retry: " .. name .. " must be a number from " .. least .. " to " .. most, 3)
    end
    return value
end

return {
    retry = function(f, options)
        if not isyieldable() then error("retry" .. NOT_HERE, 2) end
        if type(f) ~= "function" then error("retry: a function is expected, got " .. type(f), 2) end
        if options ~= nil and type(options) ~= "table" then
            error("retry: the options must be a table, got " .. type(options), 2)
        end
        x.check_options("retry", options, ", tries, base_s, max_s, ", 2)
        local tries = number(options, "tries", 3, 1, 100)
        if tries % 1 ~= 0 then error("retry: tries must be a whole number", 2) end
        local base = number(options, "base_s", 0.1, 0, 3600)
        local most = number(options, "max_s", 30, 0, 3600)
        for n = 1, tries do
            local results = table_pack(pcall(f, n))
            if results[1] then return table_unpack(results, 2, results.n) end
            if n == tries then error(results[2], 0) end
            -- Between half and all of it, by chance: callers that failed together do not come back together.
            local wait = base * 2 ^ (n - 1)
            wait = (wait < most and wait or most) * (0.5 + (random(0) >> 11) * 0x1p-54)
            local now = unpack(">d", native("retry", "clock:now", ""))
            if now + wait >= deadline then error(results[2], 0) end
            if wait > 0 then host_call("sleep", { seconds = wait }) end
        end
    end,
}
