-- The description of a script's error, which may be any value.
local x = ...
local type, pcall, sub, traceback, raw_tostring = x.type, x.pcall, x.sub, x.traceback, x.tostring
local tostring = x.need("wrapped").tostring

return {
    -- described(error, thread) -> kind, message, traceback. Longer than what is shown: the supervisor cuts both after
    -- it has searched them for secrets, as a cut secret would not be found. Both bounds together are a third of what
    -- one message may have beside its value (engine/workers/protocol.py): a byte that is not UTF-8 becomes three.
    described = function(e, thread)
        local message
        if type(e) == "string" or type(e) == "number" then
            message = raw_tostring(e)
        else
            local ok, text = pcall(tostring, e)
            message = ok and type(text) == "string" and text ~= type(e) and text
                or "(the error is a " .. type(e) .. " value)"
        end
        return "script_error", sub(message, 1, 8192), sub(traceback(thread), 1, 12288)
    end,
}
