-- expect: ok value=true
-- Sends queries full of operators, quotes, NUL and line breaks.
agent = {}
function agent.resolve(args, config, context)
    for _, query in ipairs({ '" OR 1=1 --', "deploy' --", "NEAR(a b)", "*", "\0", "deploy\n\ndeploy", "title:x AND", "(((" }) do
        pcall(context.search, query)
    end
    return true
end
