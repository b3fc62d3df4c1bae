"""Uploads: schemas and what they are held against, packages of the largest permitted size, and uploads in a row."""

import json
from typing import Any

from supervisor.attack import BODY, Ask, Attack, Place, Plan, post, text, upload


def lua(value: Any) -> str:
    """A JSON value in Lua."""
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\{byte:03}" if byte < 32 or byte in b'"\\' or byte > 126 else chr(byte)
                                 for byte in value.encode("utf-8", "surrogatepass")) + '"'  # fmt: skip
        case list() | tuple():
            return "{" + ",".join(map(lua, value)) + "}"
        case dict():
            return "{" + ",".join(f"[{lua(key)}]={lua(item)}" for key, item in value.items()) + "}"
    return repr(value)


def tool_source(parameters: Any = None, returns: Any = None, body: str = "return {}") -> str:
    """A tool with these schemas."""
    said = {"description": "x"} | {k: v for k, v in (("parameters", parameters), ("returns", returns)) if v is not None}
    return f"tool = {lua(said)}\nfunction tool.execute(params, context)\n{body}\nend"


def checked(name: str, schema: Any, body: bytes) -> Attack:
    """A call of a tool whose parameters have this schema. Where the schema is refused, the call meets nothing."""

    def plan(place: Place) -> Plan:
        return Plan((post(f"/tools/{place.name}", body),), len(body) + len(json.dumps(schema)),
                    upload(place.name, tool_source(schema), "tools"))  # fmt: skip

    return Attack(name, ("validation",), plan)


def compiled(name: str, schema: Any) -> Attack:
    """An upload with a schema."""

    def plan(place: Place) -> Plan:
        return Plan(upload(place.name, tool_source(schema), "tools"), len(json.dumps(schema)))

    return Attack(name, ("schema",), plan)


def returned(name: str, returns: Any, body: str, size: int) -> Attack:
    """A call of a tool whose answer is held against this schema."""

    def plan(place: Place) -> Plan:
        source = tool_source(None, returns, body)
        return Plan((post(f"/tools/{place.name}", b"{}"),), size, upload(place.name, source, "tools"))

    return Attack(name, ("validation",), plan)


def packed(name: str, files: dict[str, str], work: str = "upload", **manifest: Any) -> Attack:
    """An upload of these files."""
    main = {"m.lua": "agent = {}\nfunction agent.resolve() return { system = 'x' } end"}

    def plan(place: Place) -> Plan:
        body = text({"version": "1", "kind": "lua", "main": "m.lua", "files": {**main, **files}, **manifest})
        return Plan((Ask("PUT", f"/agents/{place.name}", body),), len(body))

    return Attack(name, (work,), plan)


def unevaluated(depth: int) -> Any:
    """A schema whose check doubles with each level."""
    schema: Any = {"type": "object", "properties": {"x": {"type": "integer"}}, "unevaluatedProperties": False}
    for _ in range(depth):
        schema = {"anyOf": [schema], "unevaluatedProperties": False}
    return {"type": "object", "properties": {"a": schema}}


def _list(items: Any, count: int) -> bytes:
    return text({"a": [items] * count})


def _of_items(items: Any) -> Any:
    return {"type": "object", "properties": {"a": {"type": "array", "items": items}}}


_STRINGS = _of_items({"type": "string"})
_ALL_OF = _of_items({"allOf": [{"type": "string"}] * 900})
_RIGHT = _of_items({"allOf": [{"type": "integer"}] * 900})


def _in_a_row(count: int, size: int) -> Attack:
    """So many uploads of this size, and one more, which is measured: what was there is not done again."""

    def one(place: Place, number: int, filler: int) -> Ask:
        body = {"version": "1", "kind": "lua", "main": "m.lua",
                "files": {"m.lua": "agent = {}\nfunction agent.resolve() return { system = 'x' } end",
                          "data.txt": "x" * filler}}  # fmt: skip
        return Ask("PUT", f"/agents/{place.name}-{number}", text(body))

    def plan(place: Place) -> Plan:
        return Plan((one(place, count, 100),), size, tuple(one(place, number, size) for number in range(count)))

    return Attack(f"an upload beside {count} others of {size} bytes", ("upload",), plan)


def _described(schema: Any) -> Attack:
    """The description of what a key may call, with a tool whose schema this is."""

    def plan(place: Place) -> Plan:
        source = tool_source(schema)
        return Plan((Ask("GET", "/openapi.json"),), len(source), upload(place.name, source, "tools"))

    return Attack("the description of a tool with a large schema", ("description",), plan)


ATTACKS = (
    _described(
        {
            "type": "object",
            "properties": {f"p{n}": {"description": "#/components/schemas/Key" * 20} for n in range(100)},
        }
    ),
    checked("unevaluatedProperties in anyOf, 12 deep", unevaluated(12), text({"a": {"x": 1}})),
    checked("unevaluatedProperties in anyOf, 18 deep", unevaluated(18), text({"a": {"x": 1}})),
    checked("unevaluatedProperties in anyOf, 29 deep", unevaluated(29), text({"a": {"x": 1}})),
    Attack(
        "a list of wrong items for a tool of the operator's",
        ("validation",),
        lambda place: Plan((post("/tools/lists", _list(1, 400_000)),), 1_200_000),
    ),
    checked("a list of a million wrong items", _STRINGS, _list(1, (BODY - 100) // 2)),
    checked("items.allOf of 900, 400 wrong items", _ALL_OF, _list(1, 400)),
    checked("items.allOf of 900, 20,000 wrong items", _ALL_OF, _list(1, 20_000)),
    checked("items.allOf of 900, 49,000 right items", _RIGHT, _list(1, 49_000)),
    checked(
        "uniqueItems of many numbers",
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
        text({"a": list(range(45_000))}),
    ),
    checked(
        "uniqueItems of many tables",
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
        text({"a": [{"k": number} for number in range(30_000)]}),
    ),
    checked("an enum of a thousand, no item of it", _of_items({"enum": list(range(1_000))}), _list(-1, 45_000)),
    checked(
        "a const that is a large table",
        _of_items({"const": {str(n): n for n in range(900)}}),
        text({"a": [{str(n): n for n in range(900)}] * 100}),
    ),
    checked(
        "patterns over a large text",
        _of_items({"allOf": [{"pattern": f"(a|b|[c-z]){{1,20}}{n}$"} for n in range(50)]}),
        text({"a": ["a" * 4_000_000]}),
    ),
    checked(
        "patternProperties by many keys",
        {"type": "object", "patternProperties": {f"a{n}b": {"type": "string"} for n in range(60)}},
        text({f"k{n}": 1 for n in range(45_000)}),
    ),
    checked(
        "contains that is never so",
        _of_items({"type": "integer"}) | {"properties": {"a": {"contains": {"type": "string"}}}},
        _list(1, 45_000),
    ),
    checked("a wrong text of four million letters", _of_items({"maxLength": 1}), text({"a": ["x" * 4_000_000]})),
    checked("a wrong table of many values", _of_items({"type": "string"}), text({"a": [[0] * 45_000]})),
    returned(
        "an answer of 250,000 wrong items",
        {"type": "array", "items": {"type": "string"}},
        "local t = {} for i = 1, 250000 do t[i] = 1 end return t",
        250_000,
    ),
    compiled(
        "25 patterns that compile to much",
        {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": "\\p{L}{1,100}"} for n in range(25)}},
    ),
    compiled(
        "600 patterns that compile to much",
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "pattern": f"\\p{{L}}{{1,90}}{n}"} for n in range(600)},
        },
    ),
    *(
        compiled(f"a pattern of {what}", {"type": "object", "properties": {"a": {"pattern": pattern}}})
        for what, pattern in (
            ("as many classes as may be", r"\S" * 34),
            ("classes and letters", r"\s" * 14 + "a" * 2_000),
            ("many classes", r"\w" * 2_048),
            ("any case", r"(?i)\p{L}" * 4_000),
            ("properties", r"\p{age=15.0}" * 3_000),
        )
    ),
    compiled(
        "one pattern in patterns",
        {"type": "object", "properties": {"a": {"pattern": "((((a{1,30}){1,30}){1,10}){1,3})"}}},
    ),
    compiled("a schema of 1,900 values", {"type": "object", "properties": {f"p{n}": {} for n in range(1_900)}}),
    compiled(
        "a schema as deep as it may be", {"type": "object", "properties": {"a": unevaluated(28)["properties"]["a"]}}
    ),
    compiled("a schema with a text of 800,000 letters", {"type": "object", "description": "x" * 800_000}),
    packed(
        "a package of 256 files with long paths", {"/".join(["p" * 60] * 8)[:-9] + f"{n:04}": "x" for n in range(255)}
    ),
    packed("a package of letters that grow", {"ﷺ" * 80 + str(n): "x" for n in range(250)}),
    packed("a package of one large file", {"data.txt": "x" * (BODY - 1_000)}),
    packed("a package of one large file of escapes", {"data.txt": "\x00" * (BODY // 6 - 1_000)}),
    *(
        packed(
            f"a script that requires, of {name}",
            {"m.lua": head + unit * (BODY // (len(text(unit)) - 2) - 400) + "\nrequire 'n'", "n.lua": ""},
            work="bundle",
        )
        for name, head, unit in (
            # None requires itself: the search ends at a cycle.
            ("quotation marks", "require 'm'", "''"),
            ("an open text of escapes", "require '", "\\x"),
            ("texts of escapes", "require 'm'", "'" + "\\a" * 1_000 + "'"),
            ("texts of letters and escapes", "require 'm'", "'" + "x\\a" * 500 + "'"),
            ("texts of skipped blanks", "require 'm'", "'" + "\\z " * 1_000 + "'"),
            ("long comments", "require 'm'", "--[[]]"),
            ("comments", "require 'm'\n", "--" + "x" * 4_000 + "\n"),
            ("one comment", "require 'm' --", "x"),
            ("dots", "require 'm'", ". "),
            ("symbols", "require 'm'", "+"),
            ("calls", "", "require'./n' "),
            ("other names", "", "require'm' "),
            ("one word", "require 'm'", "a"),
            ("one long text", "require 'm'[[", "]"),
            ("one bracket", "require 'm'[", "="),
            ("lines", "require 'm'", "\r"),
        )
    ),
    packed(
        "a script that requires 255 files",
        {
            "m.lua": "".join(f"require'./f{n}'" for n in range(255)),
            **{f"f{n}.lua": "x = 1\n" * 2_000 for n in range(255)},
        },
        work="bundle",
    ),
    packed("a package with a large config", {}, config={f"k{n}": n for n in range(45_000)}),
    packed("a package with a config of a large list", {}, config={"a": [{}] * 45_000}),
    packed("a package with 45,000 tools", {}, tools=["a"] * 45_000),
    packed("a package with 45,000 arguments", {}, arguments=[{}] * 45_000),
    packed("a package with 45,000 hosts", {}, grants={"hosts": ["a.example.com"] * 45_000}),
    packed("a package with 45,000 secrets", {}, grants={"secrets": ["A"] * 45_000}),
    packed("a package with 45,000 limits", {}, grants={"limits": {f"l{n}": 1 for n in range(45_000)}}),
    packed("a package with 45,000 unknown keys", {}, **{f"k{n}": 1 for n in range(45_000)}),
    *(
        packed(
            f"a TOML agent of {name}",
            {"m.toml": unit * (BODY // (len(text(unit)) - 2) - 400)},
            kind="toml",
            main="m.toml",
        )
        for name, unit in (
            ("dotted keys", "a.b.c.d=1\n"),
            ("tables", "[a]\n"),
            ("brackets", "a=[[[[[[\n"),
            ("numbers", "a=[1,1,1,1]\n"),
            ("comments", "#\n"),
            ("texts", "a=''\n"),
            ("one line of dots", "a."),
            ("arrays of tables", "[[a]]\n"),
        )
    ),
    *(
        packed(f"a small TOML agent of {name}", {"m.toml": source}, kind="toml", main="m.toml")
        for name, source in (
            ("escaped quotation marks", '\\"' * 120_000),
            ("quotation marks", '"""a' * 60_000),
            ("escapes", 'system_prompt = "' + "\\u0041" * 4_000 + '"'),
            ("digits", "tools = " + "9" * 16_000),
        )
    ),
    _in_a_row(12, BODY - 1_000),
)
