-- expect: ok value="none" fill={"<CHAIN>": ["elseif args.n == {i} then return {i} ", 2000]}
-- Chains two thousand branches, which is long but legal.
agent = {}
function agent.resolve(args, config, context)
    if args.n == 0 then return 0 <CHAIN> end
    return "none"
end
