-- Which lines of the files under test were executed, by a hook; and which can be, from the compiler's line information.
local x = ...
local getinfo, sethook, next, setmetatable = x.getinfo, x.sethook, x.next, x.setmetatable
local byte, sub, sort, ARRAYS, raw_create, native = x.byte, x.sub, x.sort, x.ARRAYS, x.create, x.native

-- The names of files as functions have them, `=NAME` -> the set of lines that were executed.
local executed = {}

-- A function's set of lines, or false. A hook cannot afford to find out for every line.
local of_function = setmetatable({}, { __mode = "k" })
local function hook(_, line)
    local f = getinfo(2, "f").func
    local lines = of_function[f]
    if lines == nil then
        lines = executed[getinfo(f, "S").source] or false
        of_function[f] = lines
    end
    if lines then lines[line] = true end
end

local function sorted(set)
    local list = {}
    ARRAYS[list] = true
    for line in next, set do list[#list + 1] = line end
    sort(list)
    return list
end

-- Bytecode as `string.dump` writes it (ldump.c 5.4): the lines with an instruction, of all functions.
local HEADER_BYTES = 32         -- signature, version, format, check data, sizes, two sample numbers, count of upvalues
local FLOAT, INTEGER, SHORT, LONG = 0x13, 0x03, 0x04, 0x14
local function lines_in(code)
    local at, lines = HEADER_BYTES + 1, {}
    local function size()
        local n, b = 0
        repeat
            b = byte(code, at)
            n, at = n << 7 | b & 0x7f, at + 1
        until b >= 0x80
        return n
    end
    local function skip_string()
        local n = size()
        if n > 0 then at = at + n - 1 end
    end
    local function of_proto()
        skip_string()
        local line = size()
        size()
        local is_vararg = byte(code, at + 1) ~= 0
        at = at + 3
        local count = size()
        at = at + 4 * count
        for _ = 1, size() do
            local kind = byte(code, at)
            at = at + 1
            if kind == FLOAT or kind == INTEGER then
                at = at + 8
            elseif kind == SHORT or kind == LONG then
                skip_string()
            end
        end
        count = size()
        at = at + 3 * count
        for _ = 1, size() do of_proto() end
        local infos = size()
        local first = at
        at = at + infos
        local absolute = {}
        for _ = 1, size() do
            local pc = size()
            absolute[pc] = size()
        end
        for _ = 1, size() do
            skip_string()
            size()
            size()
        end
        for _ = 1, size() do skip_string() end
        -- Neither the instruction that prepares `...` nor the last one, which returns where the text of the function
        -- ends: it is there even behind a `return`.
        for pc = 0, infos - 2 do
            local step = byte(code, first + pc)
            if step == 0x80 then
                line = absolute[pc]
            else
                line = line + (step < 0x80 and step or step - 0x100)
            end
            if pc > 0 or not is_vararg then lines[line] = true end
        end
    end
    of_proto()
    return lines
end

return {
    -- begin(files): from here on lines of these files count, in this coroutine and in each that is made.
    begin = function(files)
        for i = 1, #files do executed["=" .. files[i]] = {} end
        x.create = function(f)
            local thread = raw_create(f)
            sethook(thread, hook, "l")
            return thread
        end
        x.env.coroutine.create = x.create
        sethook(hook, "l")
    end,
    hits = function()
        local found = {}
        for source, lines in next, executed do
            if next(lines) ~= nil then found[sub(source, 2)] = sorted(lines) end
        end
        return found
    end,
    -- executable(files) -> the lines of each that can be executed; none of a file that does not compile.
    executable = function(files)
        local found = {}
        for i = 1, #files do
            local code = native("coverage", "require:code", files[i])
            if byte(code, 1) ~= 27 then
                local chunk = x.load(code, "=" .. files[i], "t", {})
                code = chunk and x.dump(chunk)
            end
            if code then found[files[i]] = sorted(lines_in(code)) end
        end
        return found
    end,
}
