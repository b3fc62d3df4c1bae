-- expect: ok value="git:runbooks has 3 documents"
-- Lists the sources.
agent = {}
function agent.resolve(args, config, context)
    local lines = {}
    for _, source in ipairs(context.sources()) do
        lines[#lines + 1] = source.source .. " has " .. source.document_count .. " documents"
    end
    return table.concat(lines, "\n")
end
