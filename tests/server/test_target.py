"""The one reading of a path and of a query: what comes through is read alike by every other reader of addresses."""

import posixpath
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from server_support import FakeService
from werkzeug.exceptions import HTTPException

from engine.errors import Code, Problem
from server.http.target import MAX_PARAMETERS, MAX_PATH_BYTES, MAX_QUERY_BYTES, PARAMETERS, read_path, read_query
from server.rest.routes import Rest, Routes

T = TypeVar("T")
REST = Rest(Routes(FakeService()).all())  # type: ignore[arg-type]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")

# Bytes that are likely to be a path of ours, or nearly one.
WORDS = sorted(
    {part for route in REST.table.routes for part in route.rule.split("/")}
    | {"x", "a+b", "a%2Bb", "a:b", "a%3Ab", "mcp"}
)
ODD = ["", ".", "..", "%2e", "%2E%2e", "%2f", "%2F", "%5c", "\\", ";", ";a=b", "%00", "%", "%zz", "%2b", "%3a",
       "%61dmin", "ADMIN", "é", "%C3%A9", "%ff", "\x00", "\n", "\t", " ", "#", "?", "@", ":", "*", "~", "...",
       "a.b"]  # fmt: skip
PATHS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([*WORDS, *WORDS, *ODD]), max_size=7).map(lambda parts: "/".join(["", *parts]).encode()),
    st.lists(st.sampled_from([*WORDS, *ODD]), min_size=1, max_size=3).map(lambda parts: "".join(parts).encode()),
)


def read(reader: Callable[[bytes], T], raw: bytes, code: Code) -> T | None:
    """What was read, or None for what was refused, with a short text."""
    try:
        return reader(raw)
    except Problem as problem:
        refused = problem
    assert refused.code is code
    assert len(refused.message) < 400
    return None


@given(PATHS)
@example(b"//admin/tenants")
@example(b"/admin//tenants")
@example(b"/tools/list/..")
def test_a_path_that_is_read_has_no_other_reading(raw: bytes) -> None:
    path = read(read_path, raw, Code.NOT_FOUND)
    if path is None:
        return
    assert path.isascii()
    assert path == unquote(path) == posixpath.normpath(path) == urlsplit(path).path
    assert not path.startswith("//")
    assert "/" not in path[-1:] or path == "/"
    assert read_path(path.encode()) == path
    # Of what was sent, it is the text as it was, but for the two spellings that are documented.
    assert raw in (path.encode(), b"/mcp/") or raw.replace(b"%2B", b"+").replace(b"%3A", b":") == path.encode()


@given(PATHS, st.sampled_from(METHODS))
@example(b"//admin/tenants", "POST")
@example(b"/agents/x/versions/1%2Bb/activate", "POST")
def test_what_is_judged_is_what_the_router_finds(raw: bytes, method: str) -> None:
    path = read(read_path, raw, Code.NOT_FOUND)
    if path is None:
        return
    found = REST.table.find(method, path)
    if found.route is REST.mcp:
        return
    try:
        # As Quart matches: the path that the guard put into the scope, and no host.
        rule, names = REST.quart.url_map.bind("localhost").match(path, method, return_rule=True)
    except HTTPException as error:
        assert found.route is None
        taken = {405: True, 404: False}[error.code or 0]
        assert bool(found.methods) is taken
        return
    assert found.route is not None
    assert rule.endpoint == f"{found.route.method} {found.route.rule}"
    assert names == found.names


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"//admin", "empty"), (b"/tools//echo", "empty"), (b"/health/", "empty"), (b"/./health", "'.'"),
        (b"/tools/../health", "'..'"), (b"/tools/..", "'..'"), (b"/%2e%2e/x", "escape"), (b"/tools%2Flist", "escape"),
        (b"/%61dmin", "escape"), (b"/a%2bb", "escape"), (b"/a%3ab", "escape"), (b"/a%", "escape"),
        (b"/a;b", "character"),
        (b"/a\\b", "character"), (b"/a b", "character"), (b"/a@b", "character"), (b"x", "character"),
        (b"", "character"),
        (b"/" + b"a" * MAX_PATH_BYTES, f"{MAX_PATH_BYTES} bytes"),
    ],
)  # fmt: skip
def test_a_refused_path_says_why(raw: bytes, why: str) -> None:
    with pytest.raises(Problem, match="there is nothing at") as caught:
        read_path(raw)
    assert why in caught.value.message


def test_methods_have_their_case() -> None:
    for route in REST.table.routes:
        path = route.rule.replace("<", "").replace(">", "")
        assert route.method == "*" or REST.table.find(route.method.lower(), path).route is None


# ---- the query --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [*sorted(PARAMETERS), "Agent", "AGENT", "%61gent", "agent+", "%EF%BD%81gent", "x", "", "agent[]"]
)
VALUES = st.sampled_from(["a", "", "b%20c", "1+2", "%2B", "%", "%zz", "%ff", "%00", "a;agent=b", "a%3Bb", "é", "#"])
QUERIES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.tuples(NAMES, st.sampled_from(["=", "", "=="]), VALUES), max_size=5).map(
        lambda pairs: "&".join("".join(pair) for pair in pairs).encode()
    ),
)


@given(QUERIES)
def test_a_query_that_is_read_has_no_other_reading(raw: bytes) -> None:
    found = read(read_query, raw, Code.BAD_REQUEST)
    if found is None:
        return
    text = raw.decode()
    assert ";" not in text
    for name, values in parse_qs(text, keep_blank_values=True).items():
        folded = name.strip().casefold()
        assert folded not in PARAMETERS or (name == folded and values == [found[name]])


@pytest.mark.parametrize(
    "raw",
    [b"agent=a&agent=b", b"agent=a&agent=a", b"Agent=a", b"%61gent=a", b"agent%20=a", b"agent=a;x=y", b"agent=%",
     b"agent=%ff", b"agent=%0a", b"agent=a#b", b"tenant=a&Tenant=b", b"x=%g0",
     b"&".join([b"x=1"] * (MAX_PARAMETERS + 1)), b"x=" + b"a" * MAX_QUERY_BYTES],
)  # fmt: skip
def test_a_doubtful_query_is_refused(raw: bytes) -> None:
    with pytest.raises(Problem) as caught:
        read_query(raw)
    assert caught.value.code is Code.BAD_REQUEST


def test_a_query_has_the_value_of_each_parameter() -> None:
    assert read_query(b"") == {}
    assert read_query(b"agent=a.b-c&since=2026-01-01T00:00:00%2B02:00&_=1&_=2&limit") == {
        "agent": "a.b-c", "since": "2026-01-01T00:00:00+02:00", "_": "1", "limit": "",
    }  # fmt: skip
