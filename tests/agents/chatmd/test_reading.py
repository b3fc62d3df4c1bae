"""Reading text that nobody vouches for: any text, too much text, and text made to take long."""

import time
from itertools import pairwise, product

import pytest
from effort import part
from hypothesis import given
from hypothesis import strategies as st

from agents.chatmd.diagnostics import CODES
from agents.chatmd.formatting import NotFormatted, formatted
from agents.chatmd.reader import Bounds, read
from agents.chatmd.tree import MAX_DEPTH, Node, Text, meaning, walk
from agents.chatmd.vocabulary import ELEMENTS
from agents.chatmd.writer import write

WIDE = Bounds(1 << 30, 1 << 30)

# Pieces of documents, sound and broken, which a text of random characters would hardly hold.
_TAGS = [
    f"{before}{name}{after}"
    for name, (before, after) in product(ELEMENTS, (("<", ">"), ("</", ">"), ("<", "/>"), ("<", " ")))
]
_PIECES = [
    *("RAW|", "|RAW", "|", "RAW", "<!--", "-->", "<", ">", "</", "/>", "<b>", "</b>", "<b ", "a < b"),
    *(" ", "\n", "\t", "\r\n", "x", "\ufeff", "\u00a0", "😀", "\x00"),
    *(' src="a"', " src='b'", " src=c", " local", ' role="user"', ' name="read_file"', ' id="i"'),
    *(' status="s"', " file=f", " show", ' d="', " e='", '"', "'", "\\", '\\"', "=", "&lt;", "&quot;", "&"),
]
PIECES = st.one_of(st.sampled_from(_TAGS), st.sampled_from(_PIECES), st.text(max_size=3))
SOURCES = st.lists(PIECES, max_size=40).map("".join)


def _depth(node: Node) -> int:
    return 0 if isinstance(node, Text) else 1 + max(map(_depth, node.children), default=0)


@given(SOURCES, st.booleans())
def test_any_text_is_read_to_a_tree_with_diagnostics_of_the_list(source: str, strict: bool) -> None:
    reading = read(source, WIDE, file="f", strict=strict)
    lines = source.removeprefix("\ufeff").split("\n")
    for each in reading.diagnostics:
        assert each.code in CODES
        assert each.message
        assert 1 <= each.at.line <= len(lines)
        assert 1 <= each.at.column <= len(lines[each.at.line - 1]) + 1
    places = [(each.at.line, each.at.column) for each in reading.diagnostics]
    assert places == sorted(places)
    for element in walk(reading.document.nodes):
        assert lines[element.at.line - 1].startswith(f"<{element.name}", element.at.column - 1)
        texts = [isinstance(child, Text) for child in element.children]
        assert not any(first and second for first, second in pairwise(texts))
        assert all(child.text for child in element.children if isinstance(child, Text))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(source: bytes) -> None:
    reading = read(source, WIDE, file="f")
    try:
        source.decode()
    except UnicodeDecodeError:
        assert [each.code for each in reading.diagnostics] == ["not-utf8"]
    else:
        assert "not-utf8" not in [each.code for each in reading.diagnostics]


@given(SOURCES)
def test_a_tree_that_is_written_reads_as_the_same_tree(source: str) -> None:
    nodes = read(source, WIDE).document.nodes
    assert meaning(read(write(nodes), WIDE).document.nodes) == meaning(nodes)


@given(SOURCES)
def test_formatting_keeps_what_it_formats_and_does_so_once(source: str) -> None:
    reading = read(source, WIDE)
    if reading.errors:
        with pytest.raises(NotFormatted, match="error"):
            formatted(source, WIDE)
        return
    after = formatted(source, WIDE)
    again = read(after, WIDE)
    assert meaning(again.document.nodes) == meaning(reading.document.nodes)
    assert [each.text for each in again.document.comments] == [each.text for each in reading.document.comments]
    assert formatted(after, WIDE) == after


ANYTHING = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("<>|RAW/!-\"'\\ \n"), max_size=20)


@given(ANYTHING, ANYTHING, st.sampled_from([name for name in ELEMENTS if name != "read"]))
def test_any_text_and_any_value_survive_being_written(text: str, value: str, name: str) -> None:
    value = value.rstrip("\\")  # no document can have such a value with white space in it
    source = write(read(f"<{name}/>", WIDE).document.nodes)
    (element,) = read(source, WIDE).document.nodes
    inner = (Text(text, element.at),) if text else ()
    nodes = (type(element)(name, {"x": value, "y": True}, inner, element.at),)
    if name in ("config", "import", "doc", "img"):
        nodes = (type(element)("user", {}, nodes, element.at),)
    assert meaning(read(write(nodes), WIDE).document.nodes) == meaning(nodes)


def test_more_bytes_than_the_bound_are_refused_unread() -> None:
    for source in ("é" * 10, ("é" * 10).encode()):
        (found,) = read(source, Bounds(19, 100), file="f").diagnostics
        assert (found.code, found.at.line, found.at.column) == ("too-large", 1, 1)
        assert [each.code for each in read(source, Bounds(20, 100)).diagnostics] == ["top-level-text"]


@pytest.mark.parametrize(
    "source",
    [
        *("<user/>" * 50, "<user " + "a=1 " * 50 + ">", "<!---->" * 50),
        *("</user>" * 50, "<user>" + "RAW||RAW" * 50, "<a <user ,>" * 50),
    ],
    ids=["elements", "attributes", "comments", "diagnostics", "blocks", "texts"],
)
def test_more_values_than_the_bound_end_the_reading_with_a_place(source: str) -> None:
    reading = read(source, Bounds(1 << 20, 40), file="f")
    assert "too-large" in [each.code for each in reading.diagnostics]
    assert len(reading.diagnostics) <= 45
    assert len(reading.document.nodes) <= 40
    assert "too-large" not in [each.code for each in read(source, Bounds(1 << 20, 400)).diagnostics]


@pytest.mark.parametrize(
    ("before", "after"), [("<user>", "</user>"), ('<agent src="a">', "</agent>"), ('<doc src="a">', "</doc>")]
)
def test_elements_nest_to_a_bound(before: str, after: str) -> None:
    deep = MAX_DEPTH - 1
    reading = read(f"<user>{before * (deep - 1)}x{after * (deep - 1)}</user>", WIDE)
    assert (reading.diagnostics, max(map(_depth, reading.document.nodes))) == ((), deep)
    reading = read(f"<user>{before * 100_000}x{after * 100_000}</user>", WIDE, file="f")
    assert "too-large" in [each.code for each in reading.errors]
    assert max(map(_depth, reading.document.nodes)) <= MAX_DEPTH + 1


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    (found,) = read("<user>\n \ud800</user>", WIDE).diagnostics
    assert (found.code, found.at.line, found.at.column) == ("not-utf8", 2, 2)


def test_bytes_that_are_no_utf8_are_told_with_their_place() -> None:
    (found,) = read("<user>é\né".encode() + b"\xff</user>", WIDE).diagnostics
    assert (found.code, found.at.line, found.at.column) == ("not-utf8", 2, 2)


HOSTILE = {
    "angles": "<",
    "unknown tags": "<a ",
    "tags that are text": "<user ",
    "open quotes": '<user a="',
    "open quotes of both kinds": "<user a='<doc b=\"",
    "tags in values of tags": 'b="<user a=" x=y" ',
    "blocks": "RAW|",
    "comments that are none": "<!-- ",
    "comments": "<!-- -->",
    "attributes": "a=1 ",
    "voids": "<doc src=a>",
    "ends": "</user>",
    "ends of voids": "</doc>",
    "wrong ends": "<user>x</system>",
    "records": "<assistant>",
    "parts": '<doc src="a" local>',
    "white space": " ",
    "white space before blocks": "<b> RAW|x|RAW",
    "line ends": "\n",
    "findings in lines": "\n<user ,>",
    "backslashes": '\\"',
    "bars": "|",
    "entities": "&amp;",
}


AROUND = ("", "<user>", "<assistant>", '<tool_response tool_call_id="x">', '<user a="', '<user a="<user a=" x=y" ')
# The first pair of each piece has another beginning than that of the piece before it.
PAIRS = [
    (name, AROUND[(number + turn) % len(AROUND)]) for number, name in enumerate(HOSTILE) for turn in range(len(AROUND))
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "inside"), part(PAIRS, lambda pair: pair[0], one_in=len(AROUND)))
def test_hostile_text_takes_time_in_proportion_to_its_size(name: str, inside: str) -> None:
    piece = HOSTILE[name]

    def took(size: int) -> float:
        source = inside + piece * (size // len(piece)) + "<"
        begin = time.process_time()
        read(source, WIDE)
        return time.process_time() - begin

    # Eight times the text: 64 times as long if it were quadratic. The least of three, as other processes interfere.
    small, large = 8_000, 64_000
    least = min(took(small) for _ in range(3)) + 0.002
    assert min(took(large) for _ in range(3)) < 24 * least
