-- expect: script_error message~"bytes"
-- Fails with a text that is not UTF-8 and holds NUL.
agent = {}
function agent.resolve(args, config, context)
    error("\xff\xfe bytes \0 and more \x80", 0)
end
