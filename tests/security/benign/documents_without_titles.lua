-- expect: ok value=["Deploying: https://docs.example.com/1", "(no title): (no address)", "Größenänderung: https://docs.example.com/3"] calls=4
-- Fetches every document and shows those without a title or an address.
agent = {}
function agent.resolve(args, config, context)
    local shown = {}
    for _, hit in ipairs(context.search("deploy disks")) do
        local document = context.get(hit.id)
        shown[#shown + 1] = (document.title or "(no title)") .. ": " .. (document.source_url or "(no address)")
    end
    return shown
end
