"""The one parser of a request's target: its path and its parameters. Pure.

A path that a proxy, the authentication and the router interpret in different ways is a vulnerability. So each path has
one spelling; any other is refused and never normalized. Authorization and routing both use the result of this parser.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from engine.errors import Code, Problem

# The endpoint of MCP; every other path is REST.
MCP_PATH = "/mcp"
# A path: three times the longest of a route, with names of 64 characters. A query: with room for what proxies append.
MAX_PATH_BYTES = 1024
MAX_QUERY_BYTES = 2048
MAX_PARAMETERS = 16

# Parts of letters, digits and `-._~+:`, none of them empty, `.` or `..`. Names of agents, tools, tenants and secrets
# have no other characters, versions contain `+` (`agents.publishing.manifest.check_version`) and labels of sources a
# `:`. Clients that escape a part of a path write these as `%2B` and `%3A` (RFC 3986 section 2.2): the only
# escapes allowed, in upper case only (section 2.1).
_PATH = re.compile(rb"(?:/(?!\.\.?(?:/|\Z))(?:[A-Za-z0-9._~+:-]|%2B|%3A)+)+")
# Paths that do not have that form: the root, and the usual second spelling of the endpoint of MCP.
_WHOLE: Mapping[bytes, str] = {b"/": "/", b"/mcp/": MCP_PATH}
# Reasons to refuse a path; the first that matches is reported.
_WHY: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"//|/\Z"), "a part of it is empty"),
    (re.compile(rb"/\.\.?(?:/|\Z)"), "it has a part '.' or '..'"),
    (re.compile(rb"%(?!2B|3A)"), "the only escapes that a path may have are %2B and %3A"),
    (re.compile(rb""), "it has a character other than letters, digits, '-', '.', '_', '~', '+' and ':'"),
)

# Every parameter that a route reads. Another spelling of such a name is refused: a request that was meant to be limited
# to an agent must not be served without that limit.
PARAMETERS = frozenset(
    {"agent", "tenant", "format", "since", "limit", "before", "path", "envelope", "percent"}
    | {"team", "lease", "after"}
)

_NONE: Mapping[str, str] = MappingProxyType({})
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def read_path(raw: bytes) -> str:
    """The path of a target. Raises Problem not_found for one that another parser could interpret differently."""
    if raw in _WHOLE:
        return _WHOLE[raw]
    if len(raw) > MAX_PATH_BYTES:
        raise Problem(Code.NOT_FOUND, f"there is nothing at a path of more than {MAX_PATH_BYTES} bytes")
    if _PATH.fullmatch(raw) is None:
        why = next(text for pattern, text in _WHY if pattern.search(raw))
        raise Problem(Code.NOT_FOUND, f"there is nothing at {raw[:200].decode('ascii', 'replace')}: {why}")
    return raw.replace(b"%2B", b"+").replace(b"%3A", b":").decode("ascii")


def read_query(raw: bytes) -> Mapping[str, str]:
    """The parameters of a query, each with one value. Raises Problem bad_request.

    Unknown parameters are ignored, as balancers and caches append some; if one is repeated, its first value counts.
    """
    if not raw:
        return _NONE
    if len(raw) > MAX_QUERY_BYTES:
        raise _bad(f"the query has more than {MAX_QUERY_BYTES} bytes")
    # RFC 3986 gives both characters a meaning, and some programs end a parameter, or the target, there.
    if b";" in raw or b"#" in raw:
        raise _bad("the query has a bare ';' or '#': escape them as %3B and %23")
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
    """A name or value of a query, unescaped."""
    if _BAD_ESCAPE.search(raw):
        raise _bad("the query has a '%' that does not begin an escape")
    try:
        text = unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise _bad("the query is not UTF-8") from None
    if _CONTROLS.search(text):
        raise _bad("the query has a control character")
    return text


def _bad(message: str) -> Problem:
    return Problem(Code.BAD_REQUEST, message)
