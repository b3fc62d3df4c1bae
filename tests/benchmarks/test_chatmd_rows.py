"""The rows of documents have a figure for each aim. No time is asserted."""

from agents.chatmd.reader import Bounds, read
from benchmarks.aims.chatmd import reading, rows


def test_the_document_that_is_read_has_no_findings_and_something_of_each_kind() -> None:
    text = reading.text_of(10_000)
    found = read(text, Bounds(len(text), len(text)))
    assert not found.diagnostics
    seen = {element.name for element in found.document.nodes}
    assert seen == {"user", "reasoning", "tool_call", "tool_response", "assistant"}


def test_a_part_of_documents_measures_each_of_its_aims() -> None:
    for aims, measure in rows.parts(rows.Sizes(megabytes=0.05), 2).values():
        found = measure()
        assert [each.aim for each in found] == list(aims)
        assert all(each.figure is not None and each.figure > 0 for each in found)
