-- What a script declares, read when it is loaded and not in runs.
local x = ...
local rawget, type, next, ARRAYS = x.rawget, x.type, x.next, x.ARRAYS

-- Other fields are the script's own and need not be plain values.
local DESCRIBED = {
    "name", "title", "description", "version", "tools", "arguments", "parameters", "returns", "annotations",
}
local METHODS = { "resolve", "complete", "execute", "scan" }
local MAX_OTHERS = 16

return {
    describe = function(declared)
        local said, functions = {}, {}
        for _, key in next, DESCRIBED do said[key] = rawget(declared, key) end
        for _, name in next, METHODS do
            if type(rawget(declared, name)) == "function" then functions[#functions + 1] = name end
        end
        -- If there is none, the names of other functions, so that the error can suggest one. A script may have any number.
        local count = 0
        for name, value in next, functions[1] and {} or declared do
            if type(value) == "function" and type(name) == "string" and #name <= 64 then
                functions[#functions + 1], count = name, count + 1
                if count == MAX_OTHERS then break end
            end
        end
        said.functions = functions
        ARRAYS[functions] = true
        return said
    end,
}
