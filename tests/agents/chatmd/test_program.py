"""A document as it runs: placeholders in its texts, and what becomes of each of its elements."""

import time
import tracemalloc

import pytest
from hypothesis import given as having
from hypothesis import strategies as st

from agents.chatmd.building import DESCRIPTION, MAX_DESCRIPTION_CHARS, Built, Content, Opened, build, image_type, uri_of
from agents.chatmd.files import Sizes, load_text
from agents.chatmd.program import (
    MAX_FILLED,
    Declared,
    Doc,
    Nested,
    Part,
    Picture,
    Program,
    Said,
    StoredCall,
    StoredResult,
    Unavailable,
    Words,
    filled,
)
from agents.code.chatmd_prompt import prompt_of
from engine.errors import Code, Problem


def program_with(*parts: Part) -> Program:
    return Program(
        model=None, temperature=None, max_output_tokens=None,
        items=(Said("system", (Words("{{a}}"),), leading=True), Said("user", parts), StoredCall("1", "{{a}}", "{{a}}")),
        tools=(), unavailable=(), documents={}, description="{{a}}", folder="", source="{{a}}", sha256="", imports=(),
    )  # fmt: skip


def test_a_placeholder_is_replaced_once_in_texts_of_messages_and_nowhere_else() -> None:
    document = Doc("{{a}}", "{{a}}")
    given = program_with(Words("{{a}} {{b}} {{c}} {{ a }}"), document, Nested("n", "p", (Words("{{b}}"), document)))
    program, unnamed = filled(given, {"a": "{{b}}<tool name='x'/>RAW|", "b": "2", "d.e": "never"})
    assert program.items[0] == Said("system", (Words("{{b}}<tool name='x'/>RAW|"),), leading=True)
    said = program.items[1]
    assert isinstance(said, Said)
    assert said.parts == (
        Words("{{b}}<tool name='x'/>RAW| 2 {{c}} {{ a }}"),
        document,
        Nested("n", "p", (Words("2"), document)),
    )
    assert program.items[2] == given.items[2]
    assert (program.description, program.source) == ("{{a}}", "{{a}}")
    assert unnamed == ("d.e",)


def test_names_of_placeholders_are_texts_and_no_patterns() -> None:
    program, unnamed = filled(program_with(Words("{{a.c}} {{abc}}")), {"a.c": "1", "(": "2"})
    assert program.items[1] == Said("user", (Words("1 {{abc}}"),))
    assert unnamed == ("(",)


def test_names_have_no_braces_and_braces_around_a_placeholder_stay() -> None:
    program, unnamed = filled(program_with(Words("{{{b}}} {{a}b}} {{{{b}}")), {"b": "1", "a}b": "2"})
    assert program.items[1] == Said("user", (Words("{1} {{a}b}} {{1"),))
    assert unnamed == ("a}b",)


def test_many_values_that_no_text_names_take_no_longer_than_their_look_up() -> None:
    values = {f"name{number}": "x" for number in range(40_000)}
    began = time.process_time()
    _, unnamed = filled(program_with(Words("{{a}} " * 1000)), values)
    assert time.process_time() - began < 0.3  # a pattern of these names took 1.5 s
    assert len(unnamed) == 40_000


def test_a_value_that_a_document_names_often_is_refused_before_it_is_put_in() -> None:
    often = program_with(Words("{{b}}" * 4096))
    program, _ = filled(often, {"b": "x" * 1024})
    assert program.items[1] == Said("user", (Words("x" * MAX_FILLED),))
    tracemalloc.start()
    with pytest.raises(Problem, match="more than 4,194,304 characters") as refused:
        filled(often, {"b": "x" * 1_000_000})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.code is Code.BAD_REQUEST
    assert peak < 8_000_000  # they would be 4 GB


def test_without_values_nothing_is_replaced() -> None:
    given = program_with(Words("{{}} {{a}}"))
    assert filled(given, {}) == (given, ())


# ---- what becomes of elements ------------------------------------------------------------------------------------

SIZES = Sizes(1 << 20, 1 << 20, 10_000)
PAGE = "https://x.example/p"


def built(source: str) -> Built:
    """The document, with `PAGE` fetched, and a document at `PAGE/n`."""
    documents = {"top": load_text(source.encode(), SIZES, shown="a"), f"{PAGE}/n": load_text(b"", SIZES, shown="n")}
    return build(Opened("top", documents, {PAGE: Content("\u00e9".encode("latin-1"), "text/plain", "latin-1")}))


ITEMS = {
    "<developer>a</developer><user>b</user><system>c</system>": (
        Said("system", (Words("a"),), leading=True), Said("user", (Words("b"),)), Said("system", (Words("c"),)),
    ),
    '<msg role="developer">a</msg><msg role="narrator">b</msg>': (Said("system", (Words("a"),), leading=True),),
    '<assistant id="1" status="completed">a</assistant>': (Said("assistant", (Words("a"),)),),
    "<user> \n</user><user></user>": (),
    "<user>a <b>c</b> <config/> d</user>": (Said("user", (Words("a <b>c</b> <config/> d"),)),),
    f'<user><doc src="{PAGE}"/></user>': (Said("user", (Doc(PAGE, "\u00e9", PAGE, "text/plain"),)),),
    f'<user><img src="{PAGE}.jpg?x"/></user>': (
        Said("user", (Picture(f"{PAGE}.jpg?x", None, "image/jpeg", f"{PAGE}.jpg?x"),)),
    ),
    f'<user><agent src="{PAGE}/n">in</agent></user>': (
        Said("user", (Nested(f"{PAGE}/n", f"{PAGE}/n", (Words("in"),)),)),
    ),
    '<tool_call tool_call_id="1" function_name="f">RAW|{"a": "<b>"}|RAW</tool_call>'
    '<tool_response tool_call_id="1">r</tool_response><reasoning id="1">t</reasoning>': (
        StoredCall("1", "f", '{"a": "<b>"}'), StoredResult("1", "r"),
    ),
    '<msg role="assistant" tool_call tool_call_id="1" function_name="f">{}</msg>'
    '<msg role="tool" tool_call_id="1">r</msg>': (StoredCall("1", "f", "{}"), StoredResult("1", "r")),
}  # fmt: skip


@pytest.mark.parametrize(("source", "items"), ITEMS.items())
def test_each_element_becomes_an_item(source: str, items: tuple[object, ...]) -> None:
    assert built(source).program.items == items


TOOLS = {
    '<tool name="search" description="d"/>': Declared("tenant", "search", "d"),
    f'<tool name="n" agent="{PAGE}/n"/>': Declared("document", "n", path=f"{PAGE}/n"),
    '<tool mcp_server="https://m.example" includes="a, b,"/>': Declared(
        "mcp", "", url="https://m.example", include=("a", "b")
    ),
    '<tool mcp_server="https://m.example" name="a" include="b"/>': Declared(
        "mcp", "a", url="https://m.example", include=("a",)
    ),
    '<tool name="sh" command="sh"/>': Unavailable("sh", "commands are not run"),
    '<tool name="sh" type="shell"/>': Unavailable("sh", "tools of type shell are not run"),
    '<tool mcp_server="stdio:x"/>': Unavailable("stdio:x", "MCP servers are not started as processes"),
    '<tool name="read_file"/>': Unavailable("read_file", "a document from an address has no folder to read"),
}


@pytest.mark.parametrize(("source", "tool"), TOOLS.items())
def test_each_tool_is_declared_or_unavailable(source: str, tool: Declared | Unavailable) -> None:
    program = built(source).program
    assert (*program.tools, *program.unavailable) == (tool,)


def test_of_two_tools_of_one_name_the_first_counts() -> None:
    program = built(f'<tool name="a"/><tool name="a"/><tool name="a" agent="{PAGE}/n"/>').program
    assert program.tools == (Declared("tenant", "a"),)
    assert [each.name for each in program.unavailable] == ["a"]


SETTINGS = {
    '<config model="m" temperature="0.5" max_tokens="10"/><config model="n"/>': ("m", 0.5, 10, 0),
    '<config model="m" temperature="warm" max_tokens="1.5"/>': ("m", None, None, 2),
    '<config temperature="nan" max_tokens="-1"/>': (None, None, None, 2),
    "": (None, None, None, 0),
}


@pytest.mark.parametrize(("source", "expected"), SETTINGS.items())
def test_settings_that_are_no_numbers_have_no_effect_and_are_told(
    source: str, expected: tuple[str | None, float | None, int | None, int]
) -> None:
    found = built(source)
    program = found.program
    assert (program.model, program.temperature, program.max_output_tokens, len(found.warnings)) == expected


DESCRIPTIONS = {
    "<!-- META_REFINE --><!-- --><!-- one\n two --><system>x</system>": "one two",
    "<user>u</user><system>\n  first \n second</system>": "first",
    "<user>u</user>": DESCRIPTION,
    f"<!--{'x' * 2000}-->": "x" * (MAX_DESCRIPTION_CHARS - 1) + "\N{HORIZONTAL ELLIPSIS}",
}


@pytest.mark.parametrize(("source", "expected"), DESCRIPTIONS.items(), ids=range(len(DESCRIPTIONS)))
def test_a_document_describes_itself(source: str, expected: str) -> None:
    assert built(source).program.description == expected


def test_addresses_of_files_say_nothing_of_the_machine_and_images_are_known_by_their_bytes() -> None:
    assert (uri_of("a b.md"), uri_of("../../x/./y.md")) == ("chatmd:///a%20b.md", "chatmd:///x/y.md")
    assert [image_type(data) for data in (b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF....WEBPVP8 ", b"text")] == [
        "image/gif", "image/jpeg", "image/webp", "",
    ]  # fmt: skip


PIECES = (
    "<system>", "</system>", "<user>", "</user>", "<assistant>", "</assistant>", "<tool name='t'/>", "<doc src='x'/>",
    f"<img src='{PAGE}'/>", f"<agent src='{PAGE}/n'>", "</agent>", "<msg role='tool'>", "</msg>", "<config/>", "RAW|",
    "|RAW", "<!--", "-->", " ", "text", "{{a}}", "<tool_call tool_call_id='1' function_name='f'>", "</tool_call>",
)  # fmt: skip


@having(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.text(max_size=20))
def test_whatever_a_document_says_it_has_a_prompt_in_which_values_are_text(source: str, value: str) -> None:
    program = built(source).program
    changed, unnamed = filled(program, {"a": value})
    assert [type(item) for item in changed.items] == [type(item) for item in program.items]
    assert changed.tools == program.tools
    has_it = any("{{a}}" in part.text for item in program.items if isinstance(item, Said) for part in words(item.parts))
    assert unnamed == (() if has_it else ("a",))
    prompt = prompt_of(changed, "last", (), {}).prompt
    assert (prompt.messages[-1].role, prompt.messages[-1].content) == ("user", "last")


def words(parts: tuple[Part, ...]) -> list[Words]:
    inner = [word for part in parts if isinstance(part, Nested) for word in words(part.parts)]
    return [*(part for part in parts if isinstance(part, Words)), *inner]
