-- expect: ok value="context.get: document not found: nope"
-- Catches the refusal of a call and reads its text.
agent = {}
function agent.resolve(args, config, context)
    local ok, why = pcall(context.get, "nope")
    return ok or why
end
