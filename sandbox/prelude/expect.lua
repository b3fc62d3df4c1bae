-- `expect(value).to_...`: comparisons of tests, and how two values that differ are shown.
local x = ...
local error, type, next, rawget, rawequal, setmetatable = x.error, x.type, x.next, x.rawget, x.rawequal, x.setmetatable
local pcall, NULL, math_type, shape = x.pcall, x.NULL, x.math_type, x.shape
local find, format, gsub, match, rep, sub, byte = x.find, x.format, x.gsub, x.match, x.rep, x.sub, x.byte
local concat, sort, utf8_len, raw_tostring = x.concat, x.sort, x.utf8_len, x.tostring
local tostring = x.need("wrapped").tostring

-- Lines and bytes a line of one value that is shown, and lines of a comparison.
local MAX_LINES, MAX_WIDTH, MAX_SHOWN = 200, 300, 60
local MAX_DEPTH = 32

-- Values as text ---------------------------------------------------------------------------------------------------
local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\", ['"'] = '\\"' }
local function escaped(c) return ESCAPES[c] or format("\\%03d", byte(c)) end
local function quoted(s)
    local cut = sub(s, 1, MAX_WIDTH)
    if not utf8_len(cut) then cut = gsub(cut, "[\x80-\xff]", escaped) end
    return '"' .. gsub(cut, '[%c"\\]', escaped) .. (#cut < #s and "…" or "") .. '"'
end
local function plain(v)
    local t = type(v)
    if t == "string" then return quoted(v) end
    if t == "number" or t == "boolean" or t == "nil" then return raw_tostring(v) end
    if rawequal(v, NULL) then return "json.null" end
    if t == "table" and next(v) == nil then return "{}" end
    return "(a " .. t .. ")"
end
-- A float with as few digits as tell it from others.
local function atom(v)
    if math_type(v) ~= "float" or v ~= v or v == 1 / 0 or v == -1 / 0 then return plain(v) end
    local short = format("%.14g", v)
    if x.tonumber(short) ~= v then short = format("%.17g", v) end
    return find(short, "[.e]") and short or short .. ".0"
end

local function keys_of(t)
    local named, others, n = {}, {}, 0
    local length = 0
    while rawget(t, length + 1) ~= nil do length = length + 1 end
    for key in next, t do
        if type(key) == "string" then
            named[#named + 1] = key
        elseif not (math_type(key) == "integer" and key >= 1 and key <= length) then
            others[#others + 1] = key
        end
        n = n + 1
        if n > 5000 then break end
    end
    sort(named)
    for i = 1, #others do named[#named + 1] = others[i] end
    return length, named
end

-- Append the lines of a value.
local function put(lines, v, indent, lead, trail, open, depth)
    if #lines > MAX_LINES then return end
    local pad = rep("  ", indent)
    if type(v) ~= "table" or rawequal(v, NULL) or next(v) == nil then
        lines[#lines + 1] = pad .. lead .. atom(v) .. trail
        return
    end
    if open[v] or depth > MAX_DEPTH then
        lines[#lines + 1] = pad .. lead .. (open[v] and "(the table that this is in)" or "{…}") .. trail
        return
    end
    open[v] = true
    lines[#lines + 1] = pad .. lead .. "{"
    local length, keys = keys_of(v)
    for i = 1, length do put(lines, rawget(v, i), indent + 1, "", ",", open, depth + 1) end
    for i = 1, #keys do
        local key = keys[i]
        local shown
        if type(key) == "string" then
            shown = match(key, "^[%a_][%w_]*$") and #key <= 64 and key or "[" .. quoted(sub(key, 1, 64)) .. "]"
        else
            shown = "[" .. atom(key) .. "]"
        end
        put(lines, rawget(v, key), indent + 1, shown .. " = ", ",", open, depth + 1)
    end
    lines[#lines + 1] = pad .. "}" .. trail
    open[v] = nil
end

local function text_lines(s)
    local lines, at = {}, 1
    while #lines <= MAX_LINES do
        local stop = find(s, "\n", at, true)
        local line = sub(s, at, (stop or #s + 1) - 1)
        line = #line > MAX_WIDTH and sub(line, 1, MAX_WIDTH) .. "…" or line
        if not utf8_len(line) then line = gsub(line, "[\x80-\xff]", escaped) end
        lines[#lines + 1] = (gsub(line, "[%c]", escaped))
        if not stop then break end
        at = stop + 1
    end
    return lines
end

local function lines_of(v)
    local lines = {}
    put(lines, v, 0, "", "", {}, 0)
    return lines
end
-- In one line, cut.
local function shown(v)
    local lines = lines_of(v)
    for i = 1, #lines do lines[i] = gsub(lines[i], "^ +", "") end
    local line = gsub(gsub(concat(lines, " "), "^{ ", "{ "), ", }", " }")
    if #line <= MAX_WIDTH then return line end
    local cut = sub(line, 1, MAX_WIDTH)
    while not utf8_len(cut) do cut = sub(cut, 1, -2) end
    return cut .. "…"
end

-- Differences ------------------------------------------------------------------------------------------------------
-- A longest common subsequence of the lines that differ, in at most MAX_LINES squared steps.
local function diff(expected, got)
    local first = 1
    while expected[first] and expected[first] == got[first] do first = first + 1 end
    local a_last, b_last = #expected, #got
    while a_last >= first and b_last >= first and expected[a_last] == got[b_last] do
        a_last, b_last = a_last - 1, b_last - 1
    end
    local lengths = {}
    for i = a_last + 1, first, -1 do
        local row, below = {}, lengths[i + 1]
        for j = b_last + 1, first, -1 do
            if i > a_last or j > b_last then
                row[j] = 0
            elseif expected[i] == got[j] then
                row[j] = below[j + 1] + 1
            else
                row[j] = below[j] >= row[j + 1] and below[j] or row[j + 1]
            end
        end
        lengths[i] = row
    end
    local out = { "- expected  + got" }
    for i = first > 4 and first - 3 or 1, first - 1 do out[#out + 1] = "  " .. expected[i] end
    local i, j = first, first
    while i <= a_last or j <= b_last do
        if i <= a_last and j <= b_last and expected[i] == got[j] then
            out[#out + 1] = "  " .. expected[i]
            i, j = i + 1, j + 1
        elseif j > b_last or (i <= a_last and lengths[i + 1][j] >= lengths[i][j + 1]) then
            out[#out + 1] = "- " .. expected[i]
            i = i + 1
        else
            out[#out + 1] = "+ " .. got[j]
            j = j + 1
        end
    end
    for k = a_last + 1, a_last + 3 do
        if expected[k] then out[#out + 1] = "  " .. expected[k] end
    end
    if #out > MAX_SHOWN then
        local more = #out - MAX_SHOWN
        for k = #out, MAX_SHOWN + 1, -1 do out[k] = nil end
        out[#out + 1] = "  … " .. more .. " more lines"
    end
    return concat(out, "\n")
end

local function compared(expected, got)
    local a, b = lines_of(expected), lines_of(got)
    if type(expected) == "string" and type(got) == "string" and (find(expected, "\n", 1, true) or find(got, "\n", 1, true)) then
        a, b = text_lines(expected), text_lines(got)
    end
    local same = #a == #b
    for i = 1, same and #a or 0 do same = same and a[i] == b[i] end
    if not same and (#a > 1 or #b > 1) then return diff(a, b) end
    return "expected: " .. shown(expected) .. "\n     got: " .. shown(got)
        .. (same and "\n(they differ in what is not shown)" or "")
end

-- Comparisons ------------------------------------------------------------------------------------------------------
local function equal(a, b, open)
    if rawequal(a, b) then return true end
    if type(a) ~= "table" or type(b) ~= "table" then
        return type(a) == type(b) and (a == b or (type(a) == "number" and a ~= a and b ~= b))
    end
    if rawequal(a, NULL) or rawequal(b, NULL) then return false end
    if rawequal(open[a], b) then return true end        -- inside a cycle: equal if the rest is
    open[a] = b
    for key, value in next, a do
        if not equal(value, rawget(b, key), open) then return false end
    end
    for key in next, b do
        if rawget(a, key) == nil then return false end
    end
    return true
end

-- Whether a table has all fields of another, tables in it likewise.
local function has(t, wanted)
    if type(t) ~= "table" or type(wanted) ~= "table" then return equal(t, wanted, {}) end
    for key, value in next, wanted do
        if not has(rawget(t, key), value) then return false end
    end
    return true
end

-- A pattern of Lua, or the text itself: most texts have a magic character.
local function matches(text, pattern)
    if find(text, pattern, 1, true) then return true end
    local ok, found = pcall(find, text, pattern)
    return ok and found ~= nil
end

local function string_argument(name, v)
    if type(v) ~= "string" then error(name .. ": a string is expected, got " .. type(v), 4) end
end

-- name -> function(value, argument, argument) -> whether it holds, what to say if not, what to say if it should not.
local function matchers(raised)
    return {
        to_equal = function(v, wanted)
            return equal(v, wanted, {}), nil, "expected something else than " .. shown(wanted), wanted
        end,
        to_be = function(v, wanted)
            local holds = rawequal(v, wanted)
            local alike = not holds and type(v) == "table" and equal(v, wanted, {})
            local said = alike and "expected the same table, got another with equal content (to_equal compares content)"
            return holds, said or nil, "expected something else than " .. shown(wanted), wanted
        end,
        to_be_nil = function(v) return v == nil, "expected nil, got " .. shown(v), "expected a value, got nil" end,
        to_be_truthy = function(v)
            return not not v, "expected a true value, got " .. shown(v), "expected nil or false, got " .. shown(v)
        end,
        to_match = function(v, pattern)
            string_argument("to_match", pattern)
            if type(v) ~= "string" then return nil, "expected a string, got " .. shown(v) end
            local ok, found = pcall(find, v, pattern)
            if not ok then error("to_match: " .. quoted(pattern) .. " is not a pattern (" .. found .. ")", 3) end
            return found ~= nil, "expected a text that matches " .. quoted(pattern) .. "\n     got: " .. shown(v),
                "expected no match of " .. quoted(pattern) .. "\n     got: " .. shown(v)
        end,
        to_contain = function(v, wanted)
            local holds = false
            if type(v) == "string" then
                string_argument("to_contain", wanted)
                holds = find(v, wanted, 1, true) ~= nil
            elseif type(v) ~= "table" then
                return nil, "expected a string or a table, got " .. shown(v)
            elseif shape(v) == "list" or type(wanted) ~= "table" then
                for _, item in next, v do holds = holds or equal(item, wanted, {}) end
            else
                holds = has(v, wanted)
            end
            return holds, "expected it to contain " .. shown(wanted) .. "\n     got: " .. shown(v),
                "expected it not to contain " .. shown(wanted) .. "\n     got: " .. shown(v)
        end,
        to_have_length = function(v, length)
            if type(v) ~= "string" and type(v) ~= "table" then
                return nil, "expected a string or a table, got " .. shown(v)
            end
            local n = #v
            if type(v) == "table" and n == 0 then
                for _ in next, v do n = n + 1 end
            end
            return n == length, "expected length " .. shown(length) .. ", got " .. n .. ": " .. shown(v),
                "expected another length than " .. shown(length) .. ": " .. shown(v)
        end,
        to_be_close_to = function(v, wanted, within)
            if type(wanted) ~= "number" then error("to_be_close_to: a number is expected, got " .. type(wanted), 3) end
            if type(v) ~= "number" then return nil, "expected a number, got " .. shown(v) end
            within = within or 1e-9
            local off = v - wanted
            return off <= within and off >= -within,
                "expected " .. shown(wanted) .. " within " .. shown(within) .. ", got " .. shown(v),
                "expected a number further than " .. shown(within) .. " from " .. shown(wanted) .. ", got " .. shown(v)
        end,
        to_raise = function(f, pattern)
            if type(f) ~= "function" then
                error("to_raise: expect(function() ... end) is expected, got " .. type(f), 3)
            end
            if pattern ~= nil then string_argument("to_raise", pattern) end
            local ok, e = raised(f)
            if ok then
                return false, "expected an error" .. (pattern and " with " .. quoted(pattern) or "") .. ", and there was none"
            end
            local said, text = pcall(tostring, e)
            text = said and text or "(an error that cannot be shown)"
            local holds = pattern == nil or (type(text) == "string" and matches(text, pattern))
            return holds, "expected an error with " .. quoted(pattern or "") .. "\n     got: " .. shown(text),
                "expected no " .. (pattern and "such " or "") .. "error\n     got: " .. shown(text)
        end,
    }
end

local function suggestion(known, name)
    local names = {}
    for each in next, known do names[#names + 1] = each end
    sort(names)
    return "there is no expect(...)." .. sub(tostring(name), 1, 64) .. "; there are " .. concat(names, ", ")
        .. ", each also as never." .. names[1] .. " or not_" .. names[1]
end

return {
    -- expect(fail, place, raised) -> the global `expect`. `fail` ends the test; `raised` calls a function that may fail.
    expect = function(fail, _, raised)
        local known = matchers(raised)
        local function ask(value, turned)
            local asked = {}
            return setmetatable(asked, {
                __metatable = false,
                __index = function(_, name)
                    if name == "never" then return ask(value, not turned) end
                    local plain_name = type(name) == "string" and match(name, "^not_(to_.+)$")
                    local f = known[plain_name or name]
                    if not f then error(suggestion(known, name), 2) end
                    local negative = turned ~= (plain_name and true or false)
                    return function(a, b, c)
                        if rawequal(a, asked) then a, b = b, c end          -- called with a colon
                        local holds, message, negated, wanted = f(value, a, b)
                        if holds == nil then fail(message) end
                        if holds and negative then fail(negated) end
                        if not holds and not negative then fail(message or compared(wanted, value)) end
                    end
                end,
            })
        end
        return function(value) return ask(value, false) end
    end,
}
