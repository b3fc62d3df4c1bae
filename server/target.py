"""The one reading of a request's target: its path and its parameters. Pure.

A path that a proxy, the layer that knows keys and a router read in different ways is a hole, so there is one spelling
of each: what has another one is refused and never mended. What comes out of here is decided upon, and is routed.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from engine.errors import Code, Problem

# Where MCP is spoken; everything else is REST.
MCP_PATH = "/mcp"
# Three times the longest path of a route, with names of 64 characters; a query has room for what proxies append.
MAX_PATH_BYTES = 1024
MAX_QUERY_BYTES = 2048
MAX_PARAMETERS = 16

# Parts of letters, digits and `-._~+`, none of them empty, `.` or `..`. Names of agents, tools, tenants and secrets
# have no other characters, and versions have `+` (`agents.manifest.check_version`). Clients that escape a part of a
# path write that as `%2B` (RFC 3986 section 2.2): the one escape there is, in upper case alone (section 2.1).
_PATH = re.compile(rb"(?:/(?!\.\.?(?:/|\Z))(?:[A-Za-z0-9._~+-]|%2B)+)+")
# Paths beside that form: the empty one, and what clients are used to write for the endpoint of MCP.
_WHOLE: Mapping[bytes, str] = {b"/": "/", b"/mcp/": MCP_PATH}
# Why a path is refused: the first that is found.
_WHY: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"//|/\Z"), "a part of it is empty"),
    (re.compile(rb"/\.\.?(?:/|\Z)"), "it has a part '.' or '..'"),
    (re.compile(rb"%(?!2B)"), "no escape but %2B has a place in a path"),
    (re.compile(rb""), "it has a character other than letters, digits, '-', '.', '_', '~' and '+'"),
)

# Every parameter that some route reads. Another spelling of its name is refused: a request that was meant to be limited
# to an agent must not be served without that limit.
PARAMETERS = frozenset({"agent", "tenant", "format", "since", "limit"})

_NONE: Mapping[str, str] = MappingProxyType({})
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def read_path(raw: bytes) -> str:
    """The path in a target. Raises Problem not_found for one that could be read in another way."""
    if raw in _WHOLE:
        return _WHOLE[raw]
    if len(raw) > MAX_PATH_BYTES:
        raise Problem(Code.NOT_FOUND, f"there is nothing at a path of more than {MAX_PATH_BYTES} bytes")
    if _PATH.fullmatch(raw) is None:
        why = next(text for pattern, text in _WHY if pattern.search(raw))
        raise Problem(Code.NOT_FOUND, f"there is nothing at {raw[:200].decode('ascii', 'replace')}: {why}")
    return raw.replace(b"%2B", b"+").decode("ascii")


def read_query(raw: bytes) -> Mapping[str, str]:
    """The parameters in a query, each with its one value. Raises Problem bad_request.

    Parameters that no route knows are let through, as balancers and caches append some; of several the first counts.
    """
    if not raw:
        return _NONE
    if len(raw) > MAX_QUERY_BYTES:
        raise _bad(f"the query has more than {MAX_QUERY_BYTES} bytes")
    # RFC 3986 has both in a target or around it, and some programs end a parameter, or the target, there.
    if b";" in raw or b"#" in raw:
        raise _bad("the query has ';' or '#' as they are: a value has them as %3B and %23")
    pairs = raw.split(b"&")
    if len(pairs) > MAX_PARAMETERS:
        raise _bad(f"the query has more than {MAX_PARAMETERS} parameters")
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        named = _text(name)
        if (meant := named.strip().casefold()) in PARAMETERS:
            if name != meant.encode():
                raise _bad(f"the query has another spelling of the parameter '{meant}'")
            if meant in found:
                raise _bad(f"the query has '{meant}' more than once")
        found.setdefault(named, _text(value))
    return found


def _text(raw: bytes) -> str:
    """A name or value as it was before it was escaped for a query."""
    if _BAD_ESCAPE.search(raw):
        raise _bad("the query has a '%' that begins no escape")
    try:
        text = unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise _bad("the query is not UTF-8") from None
    if _CONTROLS.search(text):
        raise _bad("the query has a control character")
    return text


def _bad(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)
