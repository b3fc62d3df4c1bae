-- What a script says of itself, asked when it is loaded and not in runs.
local x = ...
local rawget, type, next, ARRAYS = x.rawget, x.type, x.next, x.ARRAYS

-- Other fields are its own business and need not be plain values.
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
        -- Where there is none, others, so that a typing error can be told: some, as a script may have any number.
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
