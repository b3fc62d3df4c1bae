-- Comma-separated values (RFC 4180): rows of a text, and the text of rows.
local x = ...
local error, type, next, rawget, math_type, tostring = x.error, x.type, x.next, x.rawget, x.math_type, x.tostring
local byte, find, gsub, sub = x.byte, x.find, x.gsub, x.sub
local concat, sort, shape, ARRAYS, format = x.concat, x.sort, x.shape, x.ARRAYS, x.format

-- Called by the functions that scripts call: an error is theirs.
local function separator_of(name, options)
    if options ~= nil and type(options) ~= "table" then
        error(name .. ": the options must be a table, got " .. type(options), 3)
    end
    x.check_options(name, options, ", header, separator, ", 3)
    local separator = options and rawget(options, "separator") or ","
    if type(separator) ~= "string" or #separator ~= 1 or find(separator, '[%w"\r\n]') then
        error(name .. ": the separator must be one character of ASCII, such as ; or a tab", 3)
    end
    return separator
end

-- The fields of one record that begins at `at`, and where the next one begins.
local function record(text, at, separator, plain)
    local row, n = {}, 0
    ARRAYS[row] = true
    while true do
        n = n + 1
        if byte(text, at) == 34 then
            local from, parts = at + 1, nil
            while true do
                local quote = find(text, '"', from, true)
                if not quote then return nil, "a quote without end that begins at byte " .. at end
                if byte(text, quote + 1) ~= 34 then
                    local part = sub(text, from, quote - 1)
                    if parts then
                        parts[#parts + 1] = part
                        part = concat(parts)
                    end
                    row[n], from = part, quote + 1
                    break
                end
                parts = parts or {}
                parts[#parts + 1] = sub(text, from, quote)
                from = quote + 2
            end
            at = from
            local c = sub(text, at, at)
            if c ~= separator and c ~= "\r" and c ~= "\n" and c ~= "" then
                return nil, "something follows a closing quote at byte " .. at
            end
        else
            local stop = find(text, plain, at) or #text + 1
            row[n] = sub(text, at, stop - 1)
            at = stop
        end
        local c = sub(text, at, at)
        if c == separator then
            at = at + 1
        else
            if c == "\r" and byte(text, at + 1) == 10 then at = at + 1 end
            return row, at + 1
        end
    end
end

local csv = {}

function csv.parse(text, options)
    if type(text) ~= "string" then error("csv.parse: a string is expected, got " .. type(text), 2) end
    local separator = separator_of("csv.parse", options)
    local named = options and rawget(options, "header")
    local rows, at, names = {}, 1, nil
    local plain = "[\r\n%" .. separator .. "]"
    ARRAYS[rows] = true
    if sub(text, 1, 3) == "\xef\xbb\xbf" then at = 4 end        -- the mark with which some programs begin UTF-8
    while at <= #text do
        local row, following = record(text, at, separator, plain)
        if not row then error("csv.parse: " .. following, 2) end
        if #row == 1 and row[1] == "" and byte(text, at) ~= 34 then
            row = nil               -- an empty line
        elseif named and not names then
            names, row = row, nil
        elseif named then
            local by_name = {}
            for i = 1, #row do
                local name = names[i]
                if not name then
                    error("csv.parse: row " .. #rows + 1 .. " has " .. #row .. " fields; the header has " .. #names, 2)
                end
                by_name[name] = row[i]
            end
            row = by_name
        end
        if row then rows[#rows + 1] = row end
        at = following
    end
    return rows
end

local function field(value, separator, quoting)
    local kind = type(value)
    if kind == "nil" then return "" end
    if math_type(value) == "float" and value % 1 == 0 and value > -2 ^ 53 and value < 2 ^ 53 then
        return format("%d", value)
    end
    if kind == "number" or kind == "boolean" then return tostring(value) end
    if kind ~= "string" then
        error("csv.encode: a field is a " .. kind .. "; it must be a string, a number, a boolean or nil", 4)
    end
    if find(value, quoting) then return '"' .. gsub(value, '"', '""') .. '"' end
    return value
end

function csv.encode(rows, options)
    if type(rows) ~= "table" then error("csv.encode: a list of rows is expected, got " .. type(rows), 2) end
    local separator = separator_of("csv.encode", options)
    local quoting = '[\r\n"%' .. separator .. "]"
    local names = options and rawget(options, "header")
    if names ~= nil and type(names) ~= "table" then
        error("csv.encode: the header must be a list of names, got " .. type(names), 2)
    end
    local what, n = shape(rows)
    if what ~= "list" and n ~= 0 then error("csv.encode: the rows must be a list", 2) end
    local first = rawget(rows, 1)
    if not names and type(first) == "table" and shape(first) == "map" then
        names = {}
        for key in next, first do names[#names + 1] = key end
        sort(names)
    end
    local lines = {}
    local function put(row, by_name, count)
        local fields = {}
        for i = 1, count do
            local value
            if by_name then value = rawget(row, names[i]) else value = rawget(row, i) end
            fields[i] = field(value, separator, quoting)
        end
        lines[#lines + 1] = count == 1 and fields[1] == "" and '""' or concat(fields, separator)
    end
    if names then put(names, false, #names) end
    for i = 1, n do
        local row = rawget(rows, i)
        if type(row) ~= "table" then error("csv.encode: row " .. i .. " is a " .. type(row) .. "; it must be a table", 2) end
        local kind, size = shape(row)
        if not kind then error("csv.encode: row " .. i .. " is a table with " .. size, 2) end
        if kind == "map" and size > 0 and not names then
            error("csv.encode: row " .. i .. " has names, and the first has none", 2)
        end
        if kind == "map" and names then put(row, true, #names) else put(row, false, size) end
    end
    lines[#lines + 1] = ""
    return concat(lines, "\r\n")
end

return csv
