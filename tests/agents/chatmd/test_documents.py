"""A table of documents: the tree of each, and what is reported of it. `documents.json` has one document a line."""

import json
from pathlib import Path
from typing import Any

import pytest

from agents.chatmd.diagnostics import CODES, Kind, errors
from agents.chatmd.formatting import NotFormatted, formatted
from agents.chatmd.reader import Bounds, Reading, read
from agents.chatmd.tree import Node, Text, meaning
from agents.chatmd.writer import write

BOUNDS = Bounds(1 << 20, 10_000)
TABLE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "documents.json").read_text(encoding="utf-8"))
SPELLING = {code for code, (kind, _) in CODES.items() if kind is Kind.TOLERATED} - {"not-supported"}


def _plain(node: Node) -> Any:
    return node.text if isinstance(node, Text) else [node.name, node.attributes, *map(_plain, node.children)]


def _found(reading: Reading) -> list[str]:
    return [f"{each.at.line}:{each.at.column} {each.code}" for each in reading.diagnostics]


def test_the_table_has_every_code_that_the_text_of_a_document_can_have() -> None:
    assert len(TABLE) >= 60
    found = {line.split()[1] for row in TABLE for line in row["found"]}
    of_files = {"file-missing", "file-outside", "file-kind", "import-cycle", "import-depth"}
    elsewhere = {"not-utf8", "too-large", "unknown-model"}
    assert found == set(CODES) - of_files - elsewhere


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_a_document_of_the_table_has_its_tree_and_its_diagnostics(row: dict[str, Any]) -> None:
    reading = read(row["source"], BOUNDS, file="x.chatmd")
    assert [_plain(node) for node in reading.document.nodes] == row["tree"]
    assert _found(reading) == row["found"]
    assert read(row["source"].encode(), BOUNDS, file="x.chatmd") == reading


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_strict_reading_finds_the_same_and_makes_errors_of_what_is_tolerated(row: dict[str, Any]) -> None:
    lenient, strict = read(row["source"], BOUNDS), read(row["source"], BOUNDS, strict=True)
    assert strict.document == lenient.document
    assert _found(strict) == _found(lenient)
    for each in lenient.diagnostics:
        assert each.severity == ("error" if CODES[each.code][0] is Kind.ERROR else "warning")
    for each in strict.diagnostics:
        assert each.severity == ("warning" if CODES[each.code][0] is Kind.WARNING else "error")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_a_tree_of_the_table_is_written_and_read_again(row: dict[str, Any]) -> None:
    document = read(row["source"], BOUNDS).document
    again = read(write(document.nodes), BOUNDS)
    assert meaning(again.document.nodes) == meaning(document.nodes)
    assert not {each.code for each in again.diagnostics} & SPELLING


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_formatting_keeps_the_meaning_and_the_comments_and_mends_the_spelling(row: dict[str, Any]) -> None:
    reading = read(row["source"], BOUNDS)
    if errors(reading.diagnostics):
        with pytest.raises(NotFormatted):
            formatted(row["source"], BOUNDS)
        return
    after = formatted(row["source"], BOUNDS)
    again = read(after, BOUNDS)
    assert meaning(again.document.nodes) == meaning(reading.document.nodes)
    assert [each.text for each in again.document.comments] == [each.text for each in reading.document.comments]
    assert not {each.code for each in again.diagnostics} & SPELLING - {"angle-in-attribute"}
    assert formatted(after, BOUNDS) == after


def test_a_node_has_its_place_in_the_form_that_tools_read() -> None:
    source = '<!-- x -->\n<user name="a" b>\n  hi <doc src="y"/>\n</user>'
    assert read(source, BOUNDS).document.as_json() == [
        {
            "element": "user",
            "attributes": {"name": "a", "b": True},
            "children": [
                {"text": "\n  hi ", "at": [2, 18]},
                {"element": "doc", "attributes": {"src": "y"}, "children": [], "at": [3, 6]},
                {"text": "\n", "at": [3, 20]},
            ],
            "at": [2, 1],
        }
    ]


def test_a_diagnostic_has_its_file_and_place_in_the_form_that_tools_read() -> None:
    (found,) = read("\n  </user>", BOUNDS, file="a/b.chatmd").diagnostics
    assert found.as_json() == {
        "code": "stray-close",
        "severity": "error",
        "message": "</user>: no <user> is open",
        "file": "a/b.chatmd",
        "line": 2,
        "column": 3,
    }
    assert str(found) == "a/b.chatmd:2:3: error: </user>: no <user> is open [stray-close]"


def test_comments_are_kept_beside_the_tree_with_their_places() -> None:
    first, second = read("<!-- a -->\n<user>b<!--c--></user>", BOUNDS).document.comments
    assert (first.text, first.at.line, first.at.column) == (" a ", 1, 1)
    assert (second.text, second.at.line, second.at.column) == ("c", 2, 8)
