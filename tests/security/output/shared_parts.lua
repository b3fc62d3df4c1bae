-- expect: output_limit limits={cpu_s=3}
-- Returns a small table that is huge when it is written out: every part is shared.
agent = {}
function agent.resolve(args, config, context)
    local t = { ("x"):rep(100) }
    for _ = 1, 30 do t = { t, t } end
    return t
end
