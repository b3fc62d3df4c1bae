"""Reports of `engine test`: any name and message is shown, and every report is one that strict parsers take."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cli.scripts.testing import reports
from cli.scripts.testing.results import (
    Declared,
    FileResult,
    Report,
    Status,
    TestResult,
    executed,
    listing_of,
    result_of,
)
from engine.run import Failure, LogLine, RunResult
from sandbox.wire.outcome import Outcome

TEXTS = st.text(st.characters() | st.sampled_from('\x00\x1b\x85\u2028\u202e\ud800\ufffe#\\\n\r<&>]"'), max_size=40)
TESTS = st.builds(
    TestResult,
    name=TEXTS,
    status=st.sampled_from(Status),
    line=st.integers(0, 1 << 31),
    message=TEXTS,
    where=TEXTS,
    traceback=TEXTS,
    is_error=st.booleans(),
    logs=st.lists(st.builds(LogLine, level=st.just("info"), text=TEXTS), max_size=2),
    wall_s=st.floats(0, 1e6),
)
FILES = st.builds(
    FileResult,
    path=st.just(Path("/x/a_test.lua")),
    shown=TEXTS,
    root=st.just(Path("/x")),
    tests=st.lists(TESTS, max_size=4),
)
REPORTS = st.builds(Report, files=st.lists(FILES, max_size=3), wall_s=st.floats(0, 1e6))


def parsed_tap(text: str) -> list[tuple[bool, str, str, dict[str, object]]]:
    """Strictly by the specification of version 14: result, description, directive and diagnosis of each test point."""
    version, plan, *lines = text.removesuffix("\n").split("\n")
    assert version == "TAP version 14"
    planned = re.fullmatch(r"1\.\.(\d+)", plan)
    assert planned is not None
    points: list[tuple[bool, str, str, dict[str, object]]] = []
    at = 0
    while at < len(lines):
        point = re.fullmatch(
            r"(not )?ok (\d+) - ((?:[^\\#\x00-\x1f\x7f]|\\[\\#])*?)(?: # ((?:SKIP|TODO)\b.*))?", lines[at]
        )
        assert point is not None, lines[at]
        assert int(point[2]) == len(points) + 1
        at += 1
        diagnosis: dict[str, object] = {}
        if at < len(lines) and lines[at] == "  ---":
            end = lines.index("  ...", at)
            for line in lines[at + 1 : end]:
                key, _, value = line.removeprefix("  ").partition(": ")
                diagnosis[key] = json.loads(value)
            at = end + 1
        description = re.sub(r"\\([\\#])", r"\1", point[3])
        points.append((point[1] is None, description, point[4] or "", diagnosis))
    assert int(planned[1]) == len(points)
    return points


@given(REPORTS)
def test_any_report_is_tap(report: Report) -> None:
    text = reports.tap(report)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    points = parsed_tap(text)
    assert [ok for ok, *_ in points] == [test.status is not Status.FAILED for _, test in report.tests]
    assert [bool(directive) for _, _, directive, _ in points] == [
        test.status is Status.SKIPPED for _, test in report.tests
    ]
    for (ok, _, _, diagnosis), (_, test) in zip(points, report.tests, strict=True):
        assert ok or diagnosis["message"] == test.message


@given(REPORTS)
def test_any_report_is_xml_with_the_right_totals(report: Report) -> None:
    root = ET.fromstring(reports.junit(report).encode())
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(report.tests) == int(root.attrib["tests"])
    for case, (_, test) in zip(cases, report.tests, strict=True):
        kinds = {child.tag for child in case} - {"system-out"}
        expected = {Status.PASSED: set(), Status.SKIPPED: {"skipped"}}
        assert kinds == expected.get(test.status, {"error" if test.is_error else "failure"})
    for suite in (root, *root):
        for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[total]) == len(list(suite.iter(tag)))


@given(REPORTS)
def test_any_report_for_people_has_every_test_in_a_line(report: Report) -> None:
    lines = reports.plain(report).split("\n")
    assert len([line for line in lines if re.match("  (ok  |FAIL|skip)  ", line)]) >= len(report.tests)
    assert lines[-2] == reports.summary(report)


def run_of(value: object, failure: Failure | None = None) -> RunResult:
    return RunResult(run_id="1", outcome=Outcome.SCRIPT_ERROR if failure else Outcome.OK, value=value, failure=failure)


def test_an_answer_of_another_shape_is_a_failed_test() -> None:
    good = {"status": "passed", "hits": {"a.lua": [1]}}
    assert result_of(Declared("x"), run_of(good)).status is Status.PASSED
    for value in (None, 5, [], {}, {"status": "fine"}, {"status": "passed", "message": 5}, {**good, "line": -1}):
        result = result_of(Declared("x"), run_of(value))
        assert (result.status, result.is_error) == (Status.FAILED, True)
        assert result.message == "the run of the test did not end as one"
    assert listing_of({"tests": [{"name": "x"}]}) is not None
    for value in (
        None,
        {},
        {"tests": 5},
        {"tests": [{}]},
        {"tests": [{"name": "x"}] * 1001},
        {"tests": [], "lines": []},
    ):
        assert listing_of(value) is None


def test_only_lines_that_can_be_executed_are_counted() -> None:
    file = FileResult(Path("/x/a_test.lua"), "a", Path("/x"), executed={"a.lua": {1: 0, 5: 0}})
    for hits in ({"a.lua": [1, 1, 9, "5", [5], None]}, {"b.lua": [1]}, {"a.lua": 5}, [], None):
        file.count(run_of({"hits": hits}))
    file.count(run_of(None))
    assert executed([file, file]) == {Path("/x/a.lua"): {1: 2, 5: 0}}


def test_coverage_is_a_table_and_a_tracefile() -> None:
    found = {Path("/x/b.lua"): {1: 2, 3: 0, 4: 0, 7: 0, 8: 1, 9: 0}, Path("/x/a.lua"): {}}
    assert reports.coverage_rows(found, str) == [
        ("/x/a.lua", "0", "0", "100.0%", ""),
        ("/x/b.lua", "6", "2", "33.3%", "3-7, 9"),
        ("total", "6", "2", "33.3%", ""),
    ]
    assert reports.lcov({Path("/x/b.lua"): {1: 2, 3: 0}}) == (
        "TN:\nSF:/x/b.lua\nDA:1,2\nDA:3,0\nLF:2\nLH:1\nend_of_record\n"
    )
