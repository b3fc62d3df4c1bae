-- expect: script_error message="corpus:5: context.get: document not found: nope" traceback~"corpus:5:"
-- Lets the refusal of a call end the run: the message names the line of the call.
agent = {}
function agent.resolve(args, config, context)
    local document = context.get("nope")
    return document
end
