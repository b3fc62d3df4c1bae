-- expect: ok value=["b-a", 1, "a1 b2", "xx", 2, "<a><b>"]
-- Replaces by text with captures, by table, by function and at most so often.
agent = {}
function agent.resolve(args, config, context)
    local swapped, n = ("a-b"):gsub("(%w)-(%w)", "%2-%1")
    local numbered = ("a b"):gsub("%w", { a = "a1", b = "b2" })
    local limited, count = ("aaa"):gsub("a", "x", 2)
    return { swapped, n, numbered, limited:sub(1, 2), count, (("ab"):gsub(".", function(c) return "<" .. c .. ">" end)) }
end
