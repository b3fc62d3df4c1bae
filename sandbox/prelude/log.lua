-- Log lines and progress. Yields if it can; inside a callback of C (sort, gsub, a metamethod) a line is kept for the
-- next step, and progress is dropped.
local x = ...
local LOG, PROGRESS, kept_lines, method = x.LOG, x.PROGRESS, x.kept_lines, x.method
local error, math_type, yield, isyieldable = x.error, x.math_type, x.yield, x.isyieldable
local sub, utf8_len, concat, table_pack, need = x.sub, x.utf8_len, x.concat, x.table_pack, x.need
local tostring = need("wrapped").tostring
local MAX_PROGRESS_BYTES = 512       -- the same as in engine/workers/protocol.py
local log_left, progress_left = x.log_left, x.progress_left

-- The text without a last character that is cut.
local function whole(text)
    for last = #text, #text - 3, -1 do
        local shorter = sub(text, 1, last)
        if utf8_len(shorter) then return shorter end
    end
    return text
end
local function plain(level, text)           -- the text is UTF-8
    if log_left < 0 then return end
    log_left = log_left - #text - 16       -- 16: charged for a line besides its text
    if log_left < 0 then
        local left = #text + log_left
        text = whole(sub(text, 1, left > 0 and left or 0)) .. " [log truncated: limit reached]"
    end
    if isyieldable() then
        yield(LOG, level, text)
    else
        kept_lines[#kept_lines + 1] = { level, text }
    end
end
local function line(level, text)
    if log_left < 0 or utf8_len(text) then return plain(level, text) end
    local warn
    text, warn = need("mend").line(sub(text, 1, log_left), "a log line")        -- only as much as fits
    plain(level, text)
    warn()
end
local function joined(...)
    local parts = table_pack(...)
    for i = 1, parts.n do parts[i] = tostring(parts[i]) end
    return concat(parts, "\t", 1, parts.n)
end

return {
    plain = plain,
    print = function(...) line("info", joined(...)) end,
    debug = function(...) line("debug", joined(...)) end,
    info = function(...) line("info", joined(...)) end,
    warn = function(...) line("warn", joined(...)) end,
    error = function(...) line("error", joined(...)) end,
    progress = function(fraction, message)
        if math_type(fraction) == nil or fraction ~= fraction or fraction == 1 / 0 or fraction == -1 / 0 then
            error("context.progress: the fraction must be a finite number", 2)
        end
        if message ~= nil then message = whole(sub(tostring(message), 1, MAX_PROGRESS_BYTES)) end
        if message and not utf8_len(message) then
            message = whole(sub(need("mend").text(message), 1, MAX_PROGRESS_BYTES))
        end
        if progress_left > 0 and isyieldable() then
            progress_left = progress_left - 1
            yield(PROGRESS, fraction + 0.0, message or "")
        end
    end,
    no_secret = function(_, name)           -- the __index of `secrets`
        if method == "" then return "secret:" .. tostring(name) end      -- described: there are none yet
        local shown = sub(tostring(name), 1, 64)
        line("warn", "secrets." .. shown .. ": there is no such secret for this script, so it is nil")
    end,
}
