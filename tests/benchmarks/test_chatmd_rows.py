"""The rows of documents have a figure for each aim. No time is asserted."""

from pathlib import Path

from agents.chatmd.reader import Bounds, read
from benchmarks.aims.chatmd import reading, rows
from benchmarks.aims.chatmd.running import Turn


def test_the_document_that_is_read_has_no_findings_and_something_of_each_kind() -> None:
    text = reading.text_of(10_000)
    found = read(text, Bounds(len(text), len(text)))
    assert not found.diagnostics
    seen = {element.name for element in found.document.nodes}
    assert seen == {"user", "reasoning", "tool_call", "tool_response", "assistant"}


def test_reading_measures_each_of_its_aims_and_a_peer_that_is_missing_is_said(tmp_path: Path) -> None:
    parts = rows.parts(rows.Sizes(megabytes=0.05), 2, tmp_path)
    aims, measure = parts["chatmd-reading"]
    found = measure()
    assert [each.aim for each in found] == list(aims)
    assert all(each.figure is not None and each.figure > 0 for each in found)
    aims, measure = parts["chatmd-tool"]
    assert [(each.aim, each.why) for each in measure()] == [
        (aim, "openai-agents is not installed: make peers") for aim in aims
    ]


# A stub and an engine take ten seconds to start: their rows are judged here from figures of a run.
def test_figures_of_runs_are_judged_by_the_medians_of_their_rounds() -> None:
    (turn,) = rows.turn_found({"ours": [[3000.0], [8000.0]], "bare": [[1500.0], [2667.0]]})
    assert (turn.aim, round(turn.figure or 0, 1)) == (rows.TURN, 2.5)
    ours, theirs = [Turn([1000.0], 500.0)] * 3, [Turn([4000.0], 1000.0)] * 3
    p50, cpu = rows.tool_found({"ours": ours, "openai-agents": theirs})
    assert (p50.figure, cpu.figure, p50.verdict, cpu.measured) == (0.25, 0.5, "pass", "0.50 ms")
