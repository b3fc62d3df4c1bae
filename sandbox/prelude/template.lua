-- Templates without logic, after Mustache: values, sections, comments, partials. Nothing in them is executed.
local x = ...
local error, type, rawget, tostring, math_type = x.error, x.type, x.rawget, x.tostring, x.math_type
local byte, find, format, gsub, match, sub = x.byte, x.find, x.format, x.gsub, x.match, x.sub
local concat, pcall, rawequal, shape, NULL, need = x.concat, x.pcall, x.rawequal, x.shape, x.NULL, x.need

-- How deep sections and partials may nest: a partial that names itself ends here.
local DEEPEST = 32

local HTML = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }
local ESCAPES = {
    none = function(s) return s end,
    html = function(s) return (gsub(s, "[&<>\"']", HTML)) end,
    url = function(s) return (gsub(s, "[^%w%-._~]", function(c) return format("%%%02X", byte(c)) end)) end,
    json = function(s) return sub(need("json").encode(s), 2, -2) end,
    markdown = function(s) return (gsub(s, "[\\`*_{}%[%]<>()#+%-.!|~]", "\\%0")) end,
}

local function lookup(stack, name)
    if name == "." then return stack[#stack] end
    local head, rest = match(name, "^([^.]+)(.*)$")
    for i = #stack, 1, -1 do
        local value = stack[i]
        if type(value) == "table" and not rawequal(value, NULL) then
            value = rawget(value, head)
            if value ~= nil then
                local at = 1
                while true do
                    local from, to = find(rest, "[^.]+", at)
                    if not from then return value end
                    if type(value) ~= "table" then return nil end
                    value, at = rawget(value, sub(rest, from, to)), to + 1
                end
            end
        end
    end
    return nil
end

local function is_false(value)
    if value == nil or value == false or rawequal(value, NULL) then return true end
    if type(value) ~= "table" then return false end
    local what, n = shape(value)
    return what == "list" and n == 0
end

local function plain(value, name)
    if value == nil or rawequal(value, NULL) then return "" end
    if math_type(value) == "float" and value % 1 == 0 and value > -2 ^ 53 and value < 2 ^ 53 then
        return format("%d", value)
    end
    local kind = type(value)
    if kind == "string" then return value end
    if kind == "number" or kind == "boolean" then return tostring(value) end
    error({ "{{" .. name .. "}} is a " .. kind .. "; it must be a string, a number or a boolean" }, 0)
end

local render

-- Where the section ends that began before `at`: its text, and where to go on.
local function section_end(text, at, name)
    local depth, from = 1, at
    while true do
        local open, close, kind, tag = find(text, "{{([#^/])%s*(.-)%s*}}", at)
        if not open then error({ "{{#" .. name .. "}} has no {{/" .. name .. "}}" }, 0) end
        if tag == name then
            depth = depth + (kind == "/" and -1 or 1)
            if depth == 0 then return sub(text, from, open - 1), close + 1 end
        end
        at = close + 1
    end
end

-- A tag of a section or a comment alone on its line takes the line with it.
local function alone(text, open, close)
    local before = match(sub(text, open - 200 > 1 and open - 200 or 1, open - 1), "([^\n]*)$")
    local after = match(text, "^[ \t]*\r?\n()", close + 1) or (find(text, "^[ \t]*$", close + 1) and #text + 1)
    if after and find(before, "^[ \t]*$") and (open - #before == 1 or sub(text, open - #before - 1, open - #before - 1) == "\n") then
        return #before, after
    end
    return 0, close + 1
end

function render(text, stack, job, depth, out)
    if depth > DEEPEST then error({ "sections and partials are nested deeper than " .. DEEPEST .. " levels" }, 0) end
    local at = 1
    while true do
        local open = find(text, "{{", at, true)
        if not open then break end
        local _, close, kind, name
        if sub(text, open, open + 2) == "{{{" then
            _, close, name = find(text, "^{{{%s*(.-)%s*}}}", open)
            kind = "&"
        elseif sub(text, open + 2, open + 2) == "!" then
            close = find(text, "}}", open, true)
            close, kind, name = close and close + 1, "!", ""
        else
            _, close, kind, name = find(text, "^{{([#^/&>]?)%s*(.-)%s*}}", open)
        end
        if not close then error({ "a {{ without }} at byte " .. open .. " of a text" }, 0) end
        if kind ~= "!" and not find(name, "^[%w_.-]+$") then
            error({ "{{" .. sub(name, 1, 64) .. "}} is no name: letters, digits, _, - and . are" }, 0)
        end
        local indent, following = 0, close + 1
        if kind == "#" or kind == "^" or kind == "!" then indent, following = alone(text, open, close) end
        out[#out + 1] = sub(text, at, open - 1 - indent)
        at = following
        if kind == "" then
            out[#out + 1] = job.escape(plain(lookup(stack, name), name))
        elseif kind == "&" then
            out[#out + 1] = plain(lookup(stack, name), name)
        elseif kind == ">" then
            local partial = job.partials and rawget(job.partials, name)
            if type(partial) ~= "string" then error({ "there is no partial " .. name }, 0) end
            render(partial, stack, job, depth + 1, out)
        elseif kind == "/" then
            error({ "{{/" .. name .. "}} ends no section" }, 0)
        elseif kind ~= "!" then
            local inner, behind = section_end(text, following, name)
            local closing = find(inner, "\n[ \t]*$")
            if closing and (find(text, "^[ \t]*\r?\n", behind) or find(text, "^[ \t]*$", behind)) then
                inner = sub(inner, 1, closing)
                behind = match(text, "^[ \t]*\r?\n()", behind) or #text + 1
            end
            local value = lookup(stack, name)
            if kind == "^" then
                if is_false(value) then render(inner, stack, job, depth + 1, out) end
            elseif not is_false(value) then
                local what, n = nil, 0
                if type(value) == "table" then what, n = shape(value) end
                local top = #stack + 1
                if what == "list" then
                    for i = 1, n do
                        stack[top] = rawget(value, i)
                        if stack[top] == nil then stack[top] = NULL end
                        render(inner, stack, job, depth + 1, out)
                    end
                else
                    stack[top] = value
                    render(inner, stack, job, depth + 1, out)
                end
                stack[top] = nil
            end
            at = behind
        end
    end
    out[#out + 1] = sub(text, at)
end

return {
    render = function(text, values, options)
        if type(text) ~= "string" then error("template.render: the text must be a string, got " .. type(text), 2) end
        if type(values) ~= "table" then error("template.render: the values must be a table, got " .. type(values), 2) end
        if options ~= nil and type(options) ~= "table" then
            error("template.render: the options must be a table, got " .. type(options), 2)
        end
        x.check_options("template.render", options, ", escape, partials, ", 2)
        local escape = options and rawget(options, "escape") or "none"
        local partials = options and rawget(options, "partials")
        if not ESCAPES[escape] then
            error("template.render: escape must be none, html, json, url or markdown", 2)
        end
        if partials ~= nil and type(partials) ~= "table" then
            error("template.render: the partials must be a table, got " .. type(partials), 2)
        end
        local out = {}
        local ok, problem = pcall(render, text, { values }, { escape = ESCAPES[escape], partials = partials }, 0, out)
        if ok then return concat(out) end
        if type(problem) == "table" then error("template.render: " .. problem[1], 2) end
        error(problem, 0)
    end,
}
