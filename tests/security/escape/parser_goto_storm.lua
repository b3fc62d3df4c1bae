-- expect: ok value=2000 fill={"<JUMPS>": ["goto l{i} ::l{i}:: n = n + 1 ", 2000]}
-- Has two thousand labels and jumps in one function.
agent = {}
function agent.resolve(args, config, context)
    local n = 0
    <JUMPS>
    return n
end
