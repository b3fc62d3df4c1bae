-- expect: ok value="fresh" runs=3
-- Leaves marks in every library table, in the context and in the configuration.
agent = {}
function agent.resolve(args, config, context)
    for _, t in ipairs({ string, table, math, utf8, os, coroutine, json, base64, crypto, log, context, config, args }) do
        if t.mark then return "found a mark" end
        t.mark = true
    end
    return "fresh"
end
