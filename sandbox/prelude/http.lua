-- The `http` library: packs arguments into one table, and makes basic credentials. The host does the rest.
local x = ...
local host_call, base64_encode = x.host_call, x.need("base64").encode
local error, type, next, find = x.error, x.type, x.next, x.find

-- The options that exist. Of some others only the name is sent, so that the host can warn about it.
local KNOWN, MAX_UNKNOWN = { headers = true, params = true, timeout = true }, 4

local function arguments(name, url, options, body)
    if type(url) == "table" and url.basic_auth then
        error(name .. ": call it with a dot, " .. name .. "(...), not with a colon", 3)
    end
    if options ~= nil and type(options) ~= "table" then
        error(name .. ": the options must be a table, got " .. type(options), 3)
    end
    local given = { url = url, body = body }
    local unknown = 0
    for key, value in next, options or {} do
        if KNOWN[key] then
            given[key] = value
        elseif type(key) == "string" and key ~= "url" and key ~= "body" and unknown < MAX_UNKNOWN then
            given[key], unknown = true, unknown + 1
        end
    end
    return given
end

local function without_body(name)
    return function(url, options)
        local answer = host_call(name, arguments(name, url, options))
        return answer
    end
end
local function with_body(name)
    return function(url, body, options)
        local answer = host_call(name, arguments(name, url, options, body))
        return answer
    end
end

return {
    get = without_body("http.get"),
    delete = without_body("http.delete"),
    post = with_body("http.post"),
    put = with_body("http.put"),
    patch = with_body("http.patch"),
    basic_auth = function(user, password)
        if type(user) ~= "string" or type(password) ~= "string" then
            error("http.basic_auth: user and password must be strings", 2)
        end
        if find(user, ":", 1, true) then error("http.basic_auth: the user must not hold a colon (RFC 7617)", 2) end
        return "Basic " .. base64_encode(user .. ":" .. password)
    end,
}
