"""`url`: parts of URLs and back, beside what Python's own library makes of them."""

from typing import Any
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_support import error_of, value_of

NAMES = st.text(alphabet="abcÄß z+&=%/?#", max_size=8)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://a", {"scheme": "http", "host": "a", "path": ""}),
        ("HTTP://User:p%40w@Example.COM:80/a%20b", {
            "scheme": "http", "user": "User", "password": "p@w", "host": "example.com", "port": 80, "path": "/a%20b"}),
        ("https://[::1]:8443/?a=1&a=2&b", {
            "scheme": "https", "host": "[::1]", "port": 8443, "path": "/", "query": "a=1&a=2&b",
            "params": {"a": ["1", "2"], "b": ""}}),
        ("mailto:a@b.c", {"scheme": "mailto", "path": "a@b.c"}),
        ("//host/p", {"host": "host", "path": "/p"}),
        ("../x?q=a+b#f%20g", {"path": "../x", "query": "q=a+b", "params": {"q": "a b"}, "fragment": "f g"}),
        ("", {"path": ""}),
        ("file:///etc", {"scheme": "file", "host": "", "path": "/etc"}),
        ("http://a@b@c/", {"scheme": "http", "user": "a@b", "host": "c", "path": "/"}),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(text: str, parts: dict[str, Any]) -> None:
    assert value_of("return url.parse(...)", text) == parts


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"scheme": "https", "host": "a.b", "path": "x y", "params": {"q": [1, True, "ä"]}, "fragment": "f g"},
         "https://a.b/x%20y?q=1&q=true&q=%C3%A4#f%20g"),
        ({"path": "/a", "query": "x=1"}, "/a?x=1"),
        ({"scheme": "http", "host": "h", "port": 1, "user": "u:", "password": "p/"}, "http://u%3A:p%2F@h:1"),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_url_is_made_of_parts(parts: dict[str, Any], text: str) -> None:
    assert value_of("return url.build(...)", parts) == text


@given(st.text(max_size=30))
def test_percent_encoding_is_that_of_python_and_comes_back(text: str) -> None:
    encoded = value_of("return url.encode(...)", text)
    assert encoded == quote(text, safe="")
    assert value_of("return url.decode(...)", encoded) == text == unquote_to_bytes(encoded).decode()


@given(st.dictionaries(NAMES, st.one_of(NAMES, st.lists(NAMES, min_size=2, max_size=3)), max_size=4))
def test_a_query_comes_back_and_is_what_forms_read(params: dict[str, Any]) -> None:
    text = value_of("return url.build({host = 'h', scheme = 'http', params = ...})", params)
    assert value_of("return url.parse(...).params or {}", text) == params
    read = parse_qs(urlsplit(text).query, keep_blank_values=True)
    assert read == {key: value if isinstance(value, list) else [value] for key, value in params.items()}


@pytest.mark.parametrize(
    "call",
    [
        "url.parse('http://a b')", "url.parse('http://a\\0')", "url.parse('http://a%')", "url.parse('http://a%4')",
        "url.parse('http://a:x/')", "url.parse('http://a:65536/')", "url.parse('http://[::1')", "url.parse({})",
        "url.build({host = 'a/b'})", "url.build({host = 'a', port = 1.5})", "url.build({scheme = ':'})",
        "url.build({path = 1})", "url.build({params = 'x'})", "url.query({a = {b = 1}})", "url.query('x')",
        "url.query({a = {{}}})", "url.encode()",
    ],
)  # fmt: skip
def test_what_is_no_url_is_an_error_at_the_scripts_line(call: str) -> None:
    assert error_of(f"\n{call}").startswith("t.lua:2: url.")


def test_long_texts_take_linear_time() -> None:
    for text in (
        "a" * 300_000,
        "@" * 300_000,
        "http://" + ":" * 300_000,
        "?" * 300_000,
        "?" + "&" * 300_000,
        "?" + "=" * 9**6,
    ):
        assert value_of("local ok = pcall(url.parse, ...) return type(ok)", text) == "boolean"
