-- expect: ok value=true logs=3 log~"\ufffd\ufffd" log~"line\nbreak"
-- Writes bytes that are no text, terminal codes and line breaks to the log.
agent = {}
function agent.resolve(args, config, context)
    log.warn("\xff\xfe \0 \27[31m")
    log.debug("line\nbreak\r")
    return true
end
