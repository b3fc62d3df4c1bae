-- What a script declares, read when it is loaded and not in runs.
local x = ...
local rawget, type, next, ARRAYS = x.rawget, x.type, x.next, x.ARRAYS

-- Other fields are the script's own and need not be plain values.
local DESCRIBED = {
    "name", "title", "description", "version", "tools", "arguments", "parameters", "returns", "annotations",
}
local METHODS = { "resolve", "complete", "execute", "scan" }

return {
    describe = function(declared)
        local said, functions = {}, {}
        for _, key in next, DESCRIBED do said[key] = rawget(declared, key) end
        for _, name in next, METHODS do
            if type(rawget(declared, name)) == "function" then functions[#functions + 1] = name end
        end
        said.functions = functions
        ARRAYS[functions] = true
        return said
    end,
}
