"""The rows of documents have a figure for each aim. No time is asserted."""

from pathlib import Path

from agents.chatmd.reader import Bounds, read
from benchmarks.aims.chatmd import reading, rows


def test_the_document_that_is_read_has_no_findings_and_something_of_each_kind() -> None:
    text = reading.text_of(10_000)
    found = read(text, Bounds(len(text), len(text)))
    assert not found.diagnostics
    seen = {element.name for element in found.document.nodes}
    assert seen == {"user", "reasoning", "tool_call", "tool_response", "assistant"}


# Runs take a real engine and a real stub, seconds to start: one part of them stands for those that have both.
def test_a_part_of_documents_measures_each_of_its_aims(tmp_path: Path) -> None:
    parts = rows.parts(rows.Sizes(megabytes=0.05, runs=2, waiting=4), 2, tmp_path)
    for name in ("chatmd-reading", "chatmd-waiting"):
        aims, measure = parts[name]
        found = measure()
        assert [each.aim for each in found] == list(aims)
        assert all(each.figure is not None for each in found)
    aims, measure = parts["chatmd-tool"]
    assert [(each.aim, each.why) for each in measure()] == [
        (aim, "openai-agents is not installed: make peers") for aim in aims
    ]
