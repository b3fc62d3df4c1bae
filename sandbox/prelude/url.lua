-- URLs (RFC 3986) in parts and back, percent-encoding, and query strings as HTML forms write them.
local x = ...
local error, type, tostring, next, rawget, math_type = x.error, x.type, x.tostring, x.next, x.rawget, x.math_type
local byte, char, find, format, gsub, match, sub = x.byte, x.char, x.find, x.format, x.gsub, x.match, x.sub
local concat, tonumber, sort, shape = x.concat, x.tonumber, x.sort, x.shape

local function check(name, value, what)
    if type(value) ~= "string" then error(name .. ": the " .. what .. " must be a string, got " .. type(value), 3) end
end

local function percent(c) return format("%%%02X", byte(c)) end
local function encode(s) return (gsub(s, "[^%w%-._~]", percent)) end
local function from_hex(digits) return char(tonumber(digits, 16)) end
local function decode(s) return (gsub(s, "%%(%x%x)", from_hex)) end
-- What is not to be encoded in each part (RFC 3986, section 3); "%" begins what is encoded already.
local PATH, QUERY, USER = "[^%w%-._~!$&'()*+,;=:@/%%]", "[^%w%-._~!$&'()*+,;=:@/?%%]", "[^%w%-._~]"

local function decode_form(s) return decode((gsub(s, "+", " "))) end
local function params_of(query)
    local params, at = {}, 1
    while at <= #query do
        local stop = find(query, "&", at, true) or #query + 1
        if stop > at then
            local pair = sub(query, at, stop - 1)
            local equals = find(pair, "=", 1, true) or #pair + 1
            local key, value = decode_form(sub(pair, 1, equals - 1)), decode_form(sub(pair, equals + 1))
            local old = params[key]
            if old == nil then
                params[key] = value
            elseif type(old) == "table" then
                old[#old + 1] = value
            else
                params[key] = { old, value }
            end
        end
        at = stop + 1
    end
    return params
end

local function put(parts, name, key, value)
    local kind = type(value)
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
        error(name .. ": the value of " .. sub(key, 1, 64) .. " is a " .. kind
            .. "; it must be a string, a number, a boolean or a list of them", 4)
    end
    if math_type(value) == "float" and value % 1 == 0 and value > -2 ^ 53 and value < 2 ^ 53 then
        value = format("%d", value)
    end
    parts[#parts + 1] = encode(key) .. "=" .. encode(tostring(value))
end
local function query_of(name, params)
    local keys, parts = {}, {}
    for key in next, params do
        if type(key) ~= "string" then error(name .. ": the names of a query must be strings, got " .. type(key), 3) end
        keys[#keys + 1] = key
    end
    sort(keys)      -- the same text for the same table
    for i = 1, #keys do
        local key = keys[i]
        local value = rawget(params, key)
        if type(value) == "table" then
            local what, n = shape(value)
            if what ~= "list" and n ~= 0 then
                error(name .. ": the value of " .. sub(key, 1, 64) .. " is a table; it must be a list", 3)
            end
            for k = 1, n do put(parts, name, key, rawget(value, k)) end
        else
            put(parts, name, key, value)
        end
    end
    return concat(parts, "&")
end

-- The part between "//" and the path: user, password, host, port. nil and a reason where it is none.
local function authority_of(text, url)
    local user, rest = match(text, "^(.*)@(.*)$")
    if user then
        local name, password = match(user, "^([^:]*):(.*)$")
        url.user, url.password = decode(name or user), password and decode(password)
        text = rest
    end
    local host, port = match(text, "^(%[[%x:.]+%])(.*)$")
    if not host then host, port = match(text, "^([^:%[%]]*)(.*)$") end
    if not host then return "the host is not valid" end
    if port ~= "" then
        if byte(port) ~= 58 then return "the host is not valid" end
        local digits = match(port, "^:(%d*)$")
        if not digits or #digits > 5 or (tonumber(digits) or 0) > 65535 then return "the port is not a number up to 65535" end
        url.port = tonumber(digits)
    end
    url.host = gsub(decode(host), "%u", function(c) return char(byte(c) + 32) end)
    return nil
end

local url = {}

function url.parse(text)
    check("url.parse", text, "text")
    if find(text, "[%c \127]") then error("url.parse: white space and control characters must be percent-encoded", 2) end
    if find(text, "%%%X") or find(text, "%%%x%X") or find(text, "%%%x?$") then
        error("url.parse: a percent sign without two hexadecimal digits behind it", 2)
    end
    local made, rest = {}, text
    local before, fragment = match(rest, "^([^#]*)#(.*)$")
    if before then rest, made.fragment = before, decode(fragment) end
    local ahead, query = match(rest, "^([^?]*)%?(.*)$")
    if ahead then
        rest, made.query = ahead, query
        made.params = params_of(query)
    end
    local scheme, behind = match(rest, "^(%a[%w+.-]*):(.*)$")
    if scheme then
        made.scheme = gsub(scheme, "%u", function(c) return char(byte(c) + 32) end)
        rest = behind
    end
    if sub(rest, 1, 2) == "//" then
        local authority, path = match(rest, "^//([^/]*)(.*)$")
        local wrong = authority_of(authority, made)
        if wrong then error("url.parse: " .. wrong, 2) end
        rest = path
    end
    made.path = rest
    return made
end

function url.build(parts)
    if type(parts) ~= "table" then error("url.build: the parts must be a table, got " .. type(parts), 2) end
    local function part(key)
        local value = rawget(parts, key)
        if value ~= nil and type(value) ~= "string" then
            error("url.build: " .. key .. " must be a string, got " .. type(value), 3)
        end
        return value
    end
    local out = {}
    local function add(s) out[#out + 1] = s end
    local scheme, host, path = part("scheme"), part("host"), part("path") or ""
    if scheme then
        if not find(scheme, "^%a[%w+.-]*$") then error("url.build: the scheme is not valid", 2) end
        add(scheme .. ":")
    end
    if host then
        if find(host, "[%s%c/?#@\\]") or (find(host, ":", 1, true) and not find(host, "^%[[%x:.]+%]$")) then
            error("url.build: the host is not valid; a port has a field of its own", 2)
        end
        add("//")
        local user, password, port = part("user"), part("password"), rawget(parts, "port")
        if user then
            add((gsub(user, USER, percent)))
            if password then add(":" .. gsub(password, USER, percent)) end
            add("@")
        end
        add(host)
        if port ~= nil then
            if math_type(port) ~= "integer" or port < 0 or port > 65535 then
                error("url.build: port must be a whole number from 0 to 65535", 2)
            end
            add(":" .. port)
        end
        if path ~= "" and sub(path, 1, 1) ~= "/" then path = "/" .. path end
    elseif sub(path, 1, 2) == "//" then
        error("url.build: a path that begins with // needs a host", 2)
    end
    add((gsub(path, PATH, percent)))
    local params, query, fragment = rawget(parts, "params"), part("query"), part("fragment")
    if params ~= nil then
        if type(params) ~= "table" then error("url.build: params must be a table, got " .. type(params), 2) end
        query = query_of("url.build", params)
    end
    if query and query ~= "" then add("?" .. gsub(query, QUERY, percent)) end
    if fragment then add("#" .. gsub(fragment, QUERY, percent)) end
    return concat(out)
end

function url.encode(text)
    check("url.encode", text, "text")
    return encode(text)
end

function url.decode(text)
    check("url.decode", text, "text")
    return decode(text)
end

function url.query(params)
    if type(params) ~= "table" then error("url.query: a table is expected, got " .. type(params), 2) end
    local made = query_of("url.query", params)
    return made
end

return url
