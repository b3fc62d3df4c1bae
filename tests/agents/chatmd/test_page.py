"""What docs/chatmd.md lists is what the code has."""

from pages import every_block, quoted, section

from agents.chatmd.diagnostics import CODES, Kind
from agents.chatmd.files import MAX_IMPORT_DEPTH, MAX_VALUES
from agents.chatmd.reader import Bounds, read
from agents.chatmd.tree import MAX_DEPTH
from agents.chatmd.vocabulary import ELEMENTS, IGNORED

PAGE = "docs/chatmd.md"


def test_every_element_is_in_the_table_with_what_it_needs() -> None:
    rows = {quoted(row[0])[0]: row for row in section(PAGE, "Elements").rows()}
    assert list(rows) == list(ELEMENTS)
    for name, (_, meaning, needs) in rows.items():
        if name != "tool":
            assert tuple(quoted(needs)) == ELEMENTS[name].required, name
        assert (meaning == "ignored") == (name in IGNORED), name


def test_every_code_is_in_the_table_with_its_severity_and_meaning() -> None:
    cells = [[cell.replace("\\|", "|") for cell in row] for row in section(PAGE, "Codes").rows()]
    rows = [(quoted(code)[0], severity, meaning) for code, severity, meaning in cells]
    assert rows == [(code, kind.value, meaning) for code, (kind, meaning) in CODES.items()]


def test_what_is_tolerated_is_in_the_table() -> None:
    rows = [quoted(row[0])[0] for row in section(PAGE, "What is tolerated").rows()]
    assert rows == [code for code, (kind, _) in CODES.items() if kind is Kind.TOLERATED]


def test_the_bounds_are_those_of_the_code() -> None:
    text = section(PAGE, "Files").text
    for bound in (MAX_IMPORT_DEPTH, f"{MAX_VALUES:,}", f"nest {MAX_DEPTH} deep"):
        assert str(bound) in text


def test_the_documents_in_the_pages_are_sound() -> None:
    assert every_block("chatmd")
    for block in every_block("chatmd"):
        assert read(block.text, Bounds(1 << 16, 1000)).errors == [], block.where
