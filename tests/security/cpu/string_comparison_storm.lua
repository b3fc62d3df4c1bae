-- expect: cpu_limit limits={memory_bytes=33554432}
-- Compares long texts that are equal up to their end.
agent = {}
function agent.resolve(args, config, context)
    local a, b = ("x"):rep(5000000) .. "a", ("x"):rep(5000000) .. "b"
    while a < b do end
end
