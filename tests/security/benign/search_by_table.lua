-- expect: ok value=[1, 1, 0, 3] calls=4
-- Uses both spellings of a search, a blank query and options.
agent = {}
function agent.resolve(args, config, context)
    return {
        #context.search({ query = "platform", mode = "keyword", limit = 3 }),
        #context.search("platform", { limit = 1 }),
        #context.search("  "),
        #context.search("deploy disks", { limit = 10, source = "runbooks", since = "2025-01-01T00:00:00Z" }),
    }
end
