"""Declarations: what a script says of itself when it is uploaded, within the limits of a run."""

from supervisor.attack import declares

_RESOLVE = "\nfunction agent.resolve() return { system = 'x' } end"
_EXECUTE = "\nfunction tool.execute() return {} end"
_WORK = ("declaration",)
_LIST = "local function many(n, unit) local t = {} for i = 1, n do t[i] = unit end return t end\n"


def _agent(fields: str) -> str:
    return f"{_LIST}agent = {{ {fields} }}{_RESOLVE}"


def _tool(fields: str) -> str:
    return f"{_LIST}tool = {{ {fields} }}{_EXECUTE}"


ATTACKS = (
    declares("300,000 arguments that are one empty table", _WORK, _agent("arguments = many(300000, {})"), 300_000),
    declares("900,000 arguments that are one empty table", _WORK, _agent("arguments = many(900000, {})"), 900_000),
    declares("30,000 arguments that are right", _WORK, _agent("arguments = many(30000, {name = 'a'})"), 210_000),
    declares("35,000 tools that are declared", _WORK, _agent("tools = many(35000, 'search')"), 245_000),
    declares(
        "30,000 tools that may be used and 5,000 that may not",
        _WORK,
        f"{_LIST}local t = many(30000, 'search') for i = 1, 5000 do t[#t + 1] = 'z' end\n"
        f"agent = {{ tools = t }}{_RESOLVE}",
        220_000,
    ),
    declares(
        "140,000 tools, the last another one",
        _WORK,
        f"{_LIST}local t = many(140000, 'search') t[#t + 1] = 'sources'\nagent = {{ tools = t }}{_RESOLVE}",
        980_000,
    ),
    declares("900,000 tools of no letters", _WORK, _agent("tools = many(900000, '')"), 900_000),
    declares("900,000 tools that are numbers", _WORK, _agent("tools = many(900000, 1)"), 900_000),
    declares("a description of a million letters", _WORK, _agent("description = ('x'):rep(1000000)"), 1_000_000),
    declares(
        "a description of a million control characters", _WORK, _agent("description = ('\\1'):rep(1000000)"), 1_000_000
    ),
    declares("a title of a million letters", _WORK, _agent("title = ('x'):rep(1000000)"), 1_000_000),
    declares("a name of a million letters", _WORK, _agent("name = ('x'):rep(1000000)"), 1_000_000),
    declares(
        "a million unknown fields",
        _WORK,
        f"agent = {{}} for i = 1, 120000 do agent['k' .. i] = 1 end{_RESOLVE}",
        1_000_000,
    ),
    declares("an unknown field of a million tables", _WORK, _agent("other = many(1000000, {})"), 1_000_000),
    declares(
        "an unknown field as deep as it may be",
        _WORK,
        f"{_LIST}local t = {{}} for i = 1, 60 do t = {{ t }} end\nagent = {{ other = many(8000, t) }}{_RESOLVE}",
        500_000,
    ),
    declares(
        "functions beyond number",
        _WORK,
        f"agent = {{}} for i = 1, 30000 do agent['f' .. i] = function() end end{_RESOLVE}",
        300_000,
    ),
    declares(
        "a tool with 300,000 parameters that are one empty table",
        _WORK,
        _tool("parameters = many(300000, {})"),
        300_000,
        "tools",
    ),
    declares(
        "a tool with 30,000 parameters",
        _WORK,
        f"local p = {{}} for i = 1, 30000 do p[i] = {{ name = 'p' .. i }} end\ntool = {{ parameters = p }}{_EXECUTE}",
        400_000,
        "tools",
    ),
    declares("a tool with 140,000 tools", _WORK, _tool("tools = many(140000, 'search')"), 980_000, "tools"),
    declares(
        "a tool whose schema is a million tables",
        _WORK,
        _tool("parameters = { type = 'object', properties = { a = { enum = many(1000000, {}) } } }"),
        1_000_000,
        "tools",
    ),
    declares(
        "a tool whose schema has a description of a million letters",
        _WORK,
        _tool("parameters = { type = 'object', description = ('x'):rep(900000) }"),
        900_000,
        "tools",
    ),
    declares("a tool with a million annotations", _WORK, _tool("annotations = many(900000, 1)"), 900_000, "tools"),
)
