-- expect: ok value=true logs=5 log~"a number\t42\ttrue\tnil" log~"warned" log~"printed\t1"
-- Writes a line at every level and prints.
agent = {}
function agent.resolve(args, config, context)
    log.debug("a number", 42, true, nil)
    log.info("told")
    log.warn("warned")
    log.error("failed: " .. tostring(pcall(error)))
    print("printed", 1)
    return true
end
