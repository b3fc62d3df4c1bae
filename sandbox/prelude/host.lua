-- Host calls beside those of `context` and `http`: `env`, `fs`, `sleep`. Each keeps its own frame (no tail call), so that
-- a refusal names the script's line.
local host_call = (...).host_call

return {
    get = function(name)
        local value = host_call("env.get", { name = name })
        return value
    end,
    read = function(path)
        local content = host_call("fs.read", { path = path })
        return content
    end,
    list = function(path, glob)
        local entries = host_call("fs.list", { path = path, glob = glob })
        return entries
    end,
    sleep = function(seconds)
        host_call("sleep", { seconds = seconds })
    end,
}
