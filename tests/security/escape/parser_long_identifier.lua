-- expect: ok value=7 fill={"<NAME>": ["n", 200000]}
-- Names a variable with two hundred thousand letters.
agent = {}
function agent.resolve(args, config, context)
    <NAME> = 7
    return <NAME>
end
