-- expect: ok value={"bad": "table", "name": "Widget"}
-- Uses __name, which the real tostring joins with an address, also with a value of another type.
agent = {}
function agent.resolve(args, config, context)
    return {
        name = tostring(setmetatable({}, { __name = "Widget" })),
        bad = tostring(setmetatable({}, { __name = {} })),
    }
end
