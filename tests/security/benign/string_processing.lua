-- expect: ok value=["hello world", "HELLO WORLD", "olleh", "a,b,c", 3, "hexxo", "x=1;y=2"]
-- Trims, changes case, reverses, splits, joins, counts and replaces.
agent = {}
local function trim(s) return (s:gsub("^%s+", ""):gsub("%s+$", "")) end
local function split(s, separator)
    local parts = {}
    for part in (s .. separator):gmatch("(.-)" .. separator:gsub("%p", "%%%0")) do parts[#parts + 1] = part end
    return parts
end
function agent.resolve(args, config, context)
    local parts = split("a.b.c", ".")
    return {
        trim("  hello world \n"), ("hello world"):upper(), ("hello"):reverse(), table.concat(parts, ","), #parts,
        (("hello"):gsub("l", "x")), table.concat({ "x=1", "y=2" }, ";"),
    }
end
