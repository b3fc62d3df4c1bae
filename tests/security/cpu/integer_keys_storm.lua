-- expect: cpu_limit
-- Uses integers and floats that fall into the same slots of a table.
agent = {}
function agent.resolve(args, config, context)
    while true do
        local t = {}
        for i = 1, 2000 do
            t[i << 32] = i
            t[i * 2.0 ^ 54] = i
        end
    end
end
