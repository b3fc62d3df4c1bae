"""`html`: text and elements, from sources of any form."""

import random
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from lua_support import error_of, value_of

from sandbox.natives import html
from sandbox.natives.refused import Refused


def selected(source: str, selector: str) -> Any:
    return msgspec.msgpack.decode(html.select(len(selector).to_bytes(4, "big") + selector.encode() + source.encode()))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", ""),
        ("plain &lt; text", "plain < text"),
        ("<p>a<p>b <b>c</b>\n d<br>e", "a\nb c d\ne"),
        ("<table><tr><td>1<td>2<tr><td>3</table>", "1\n2\n3"),
        ("<title>t</title><style>x</style>a<script>b</script><template>c</template>d", "ad"),
        ("<ul><li>a<ul><li>b</ul>c</ul>", "a\nb\nc"),
        ("<div>a<span> b </span>c</div>d", "a b c\nd"),
        ("<!-- no --><p>ä 漢", "ä 漢"),
    ],
)
def test_the_text_has_a_line_for_each_block(source: str, text: str) -> None:
    assert html.text(source.encode()).decode() == text


def test_elements_are_those_that_the_selector_matches_in_their_order() -> None:
    source = "<div id=d><a href='/x' hidden>one <b>two</b></a><a>three</a></div>"
    first, second = selected(source, "#d > a")
    assert first == {
        "tag": "a", "attributes": {"href": "/x", "hidden": ""}, "text": "one two",
        "html": '<a href="/x" hidden="">one <b>two</b></a>',
    }  # fmt: skip
    assert (second["text"], second["attributes"]) == ("three", {})
    assert [each["tag"] for each in selected(source, "b, div")] == ["div", "b"]


@pytest.mark.parametrize(
    ("source", "selector", "refusal"),
    [
        ("<div>" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<b>" * 100_000, "b", "nested deeper than 1000 elements"),
        ("<div></x>" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<div a='</div>'>" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<div><!--</div>-->" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<div><script></div></script>" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<span><div></span></div>" * 100_000, "div", "nested deeper than 1000 elements"),
        ("<p " + "".join(f" a{number}" for number in range(60_000)) + ">", "p", "more than 1000 attributes"),
        ("<p" + "".join(f" a{number}='x>'" for number in range(60_000)) + ">", "p", "more than 1000 attributes"),
        ("<p>" * 10_001, "p", "matches 10001 elements"),
        ("<div>" * 900 + "x" * 100_000, "div", "more than 16777216 bytes"),
        ("<p>", "p[", "the selector is not valid"),
        ("<p>", "", "the selector is not valid"),
        ("<p>", "p " * 5000, "the selector has 10000 bytes"),
        ("x" * (16 * 1024 * 1024 + 1), "p", "the most is 16777216"),
    ],
)
def test_what_is_too_large_is_refused(source: str, selector: str, refusal: str) -> None:
    with pytest.raises(Refused) as refused:
        selected(source, selector)
    assert refusal in str(refused.value)


def test_ordinary_pages_of_any_length_are_read() -> None:
    row = (
        "<div class='a'><a href='?x=1&y=</a>'>one <b>two</b></a><!-- <div> not <b>shown</b> </div> --><br>"
        "<ul><li>x<li>y</ul><script>if (a < b) { c('</div>') }</script><img alt='a > b'><table><tr><td>1</table>"
        "<div><span>unclosed</div></div>\n"
    )
    assert html.text((row * 3_000).encode()).count(b"one two") == 3_000


def test_any_bytes_are_a_source() -> None:
    source = random.Random(5)
    pieces = [
        b"<p>",
        b"</p>",
        b"<table>",
        b"<td>",
        b"<b",
        b"<!--",
        b"-->",
        b"\xff",
        b"\0",
        b"<svg>",
        b"<script>",
        b"&#x0;",
        b"a",
    ]
    for _ in range(300):
        made = b"".join(source.choice(pieces) for _ in range(source.randrange(30)))
        html.text(made)
        with suppress(Refused):
            html.select(b"\0\0\0\x01*" + made)


def test_deep_and_long_sources_within_the_bounds_take_bounded_time() -> None:
    began = time.thread_time()
    for source in (b"<div>" * 1000, b"<p>x" * 20_000, b"<td>" * 20_000, b"<b>" * 990 + b"<p>" * 1000):
        html.text(source)
    assert time.thread_time() - began < 10


def test_in_a_callback_it_is_refused_and_errors_name_the_scripts_line() -> None:
    assert "html.text cannot be called here" in error_of("return ('a'):gsub('.', html.text)")
    assert error_of("\nhtml.select('<p>', 'p[')") == "t.lua:2: html.select: the selector is not valid: p["
    assert value_of("return html.text('<p>a')") == "a"
