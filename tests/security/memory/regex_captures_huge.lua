-- expect: memory_limit limits={cpu_s=5}
-- Collects the captures of all matches of a long text.
agent = {}
function agent.resolve(args, config, context)
    local all = {}
    for a, b in regex.gmatch(("ab"):rep(2000000), "(a)(b)") do all[#all + 1] = { a, b } end
    return #all
end
