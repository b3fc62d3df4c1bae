"""Requests: bodies of the largest permitted size for what any key may ask, over REST and MCP, and heads."""

from collections.abc import Callable
from functools import partial

from supervisor.attack import BODY, Ask, Attack, Place, Plan, filled, message, post

Body = Callable[[], bytes]

# What a body is full of, between `{"q":[` and `]}`.
UNITS = {
    "empty tables": b"{}",
    "empty lists": b"[]",
    "lists in lists": b"[[[[[[[[]]]]]]]]",
    "tables with one key of a colon": b'{":":1}',
    "tables with one key": b'{"a":1}',
    "small numbers": b"1",
    "fractions": b"0.1",
    "numbers of many digits": b"1" * 300,
    "numbers beyond 64 bits": b"99999999999999999999",
    "numbers with large exponents": b"1e308",
    "nothing": b"null",
    "empty texts": b'""',
    "texts of escapes": b'"\\u0000\\n"',
    "texts with colons": b'":::::::"',
    "texts with commas and brackets": b'",,[[{{"',
    "half surrogates in pairs": b'"\\ud83d\\ude00"',
}
TEXTS = {
    "one text": b"x",
    "one text of escapes": b"\\u0000",
    "one text of new lines": b"\\n",
    "one text of brackets": b"[{,:",
    "one text of four-byte letters": "\U0001f600".encode(),
}


def _keys(size: int) -> bytes:
    """One object with as many different keys as fit."""
    count = (size - 16) // len(b'"00000":0,')
    return b"{" + b",".join(b'"%05x":0' % number for number in range(count)) + b"}"


def _deep(depth: int, size: int) -> bytes:
    """Chains of lists, as deep as this, side by side."""
    return filled(b'{"q":[', b"[" * depth + b"]" * depth, b"]}", size)


def _bodies() -> dict[str, Body]:
    """Bodies of the largest permitted size, by what they hold: each is made when it is sent."""
    found: dict[str, Body] = {
        f"a body of {name}": partial(filled, b'{"q":[', unit, b"]}") for name, unit in UNITS.items()
    }
    found |= {
        f"a body of {name}": partial(filled, b'{"q":"', unit, b'"}', separator=b"") for name, unit in TEXTS.items()
    }
    found["a body of different keys"] = partial(_keys, BODY)
    found["a body of one key many times"] = partial(filled, b"{", b'"a":1', b"}")
    found["a body of chains at the permitted depth"] = partial(_deep, 250, BODY)
    found["a body of chains beyond the permitted depth"] = partial(_deep, 400, BODY)
    found["a body of one endless chain"] = lambda: b'{"q":' + b"[" * (BODY - 6)
    found["a body that ends in the middle"] = partial(filled, b'{"q":[', b"{}", b"")
    found["a body of blanks"] = lambda: b"{" + b" " * (BODY - 2) + b"}"
    return found


def _rest(name: str, body: Body, path: str) -> Attack:
    def plan(place: Place) -> Plan:
        sent = body()
        return Plan((post(path, sent),), len(sent))

    return Attack(f"{name} to {path}", ("body", "bodies"), plan)


def _mcp(name: str, method: str, before: bytes, unit: bytes, after: bytes) -> Attack:
    def plan(place: Place) -> Plan:
        params = filled(before, unit, after, BODY - 200)
        return Plan((message(method, params),), len(params))

    return Attack(f"{method} with {name}", ("body", "message"), plan)


def _heads() -> dict[str, Ask]:
    headers = tuple((f"x-{number}", "y" * 90) for number in range(140))
    return {
        "a head of many headers": Ask("POST", "/agents/echo/prompt", b"{}", headers),
        "a query of many names": Ask("POST", "/agents/echo/prompt?" + "&".join("a=1" for _ in range(3_500)), b"{}"),
        "a query of one name many times": Ask("GET", "/tools/list?" + "&".join("agent=a" for _ in range(1_700))),
        "a query of escapes": Ask("GET", "/tools/list?agent=" + "%41" * 4_000),
        "a path of escapes": Ask("POST", "/agents/" + "%41" * 4_000 + "/prompt", b"{}"),
        "a path of parts": Ask("GET", "/" + "a/" * 6_000),
        "a key of many bytes": Ask("GET", "/limits", headers=(("authorization", "Bearer " + "k" * 12_000),)),
    }


BODIES = _bodies()

ATTACKS = (
    *(_rest(name, body, "/agents/echo/prompt") for name, body in BODIES.items()),
    *(_rest(name, body, "/agents/nobody/prompt") for name, body in list(BODIES.items())[:2]),
    *(_rest(name, body, "/admin/tenants") for name, body in list(BODIES.items())[:1]),
    *(_mcp(name, "prompts/get", b'{"name":"echo","arguments":{"a":[', unit, b"]}}") for name, unit in UNITS.items()),
    *(
        _mcp(name, "tools/call", b'{"name":"lists","arguments":{"a":[', unit, b"]}}")
        for name, unit in list(UNITS.items())[:5]
    ),
    _mcp("a name of four million letters", "tools/call", b'{"name":"', b"x" * 1000, b'"}'),
    _mcp("a large _meta", "ping", b'{"_meta":{"a":[', b"{}", b"]}}"),
    _mcp("a progress token of a large list", "ping", b'{"_meta":{"progressToken":[', b"{}", b"]}}"),
    _mcp("a cursor of a large text", "tools/list", b'{"cursor":"', b"x" * 1000, b'"}'),
    _mcp(
        "a large completion",
        "completion/complete",
        b'{"ref":{"type":"ref/prompt","name":"echo"},"argument":{"name":"a","value":"',
        b"x" * 1000,
        b'"}}',
    ),
    _mcp(
        "capabilities of many tables",
        "initialize",
        b'{"protocolVersion":"2025-11-25","clientInfo":{"name":"a","version":"1"},"capabilities":{"experimental":{"a":{"b":[',
        b"{}",
        b"]}}}}",
    ),
    *(
        Attack(name, ("head",), lambda place, ask=ask: Plan((ask,), 16 * 1024))  # type: ignore[misc]
        for name, ask in _heads().items()
    ),
)
