"""Reports of tests as text: for people, as TAP version 14, as JUnit XML, and coverage as a table and as lcov. Pure.

Names and messages come from scripts: each report escapes what its format cannot hold.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from cli.output import indented, plural
from cli.scripts.testing.results import FileResult, Report, Status, TestResult

Format = Literal["plain", "tap", "junit"]

# What XML 1.0 (section 2.2) cannot hold; and other controls: C0, C1, and those of the direction of writing.
_NOT_XML = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _visible(text: str, what: re.Pattern[str]) -> str:
    return what.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


# ---- for people -----------------------------------------------------------------------------------------------------

# Where an error was raised, as Lua begins its message.
_PLACE = re.compile(r"[^:\n]+\.lua:\d+: ")
_WORDS: Mapping[Status, str] = {Status.PASSED: "ok  ", Status.FAILED: "FAIL", Status.SKIPPED: "skip"}


def of_file(file: FileResult) -> Iterator[str]:
    """The lines of one file: each test in a line."""
    yield file.shown
    for test in file.tests:
        more = f"  ({test.message})" if test.status is Status.SKIPPED and test.message != "skipped" else ""
        took = f"  {_ms(test.wall_s)}" if test.status is not Status.SKIPPED else ""
        yield f"  {_WORDS[test.status]}  {_visible(test.name, _CONTROL)}{took}{_visible(more, _CONTROL)}"


def details(file: FileResult, test: TestResult) -> Iterator[str]:
    """The lines about a failed test."""
    line = f":{test.line}" if test.line else ""
    yield f"FAILED  {file.shown}{line}  {_visible(test.name, _CONTROL)}"
    # Here, too, as the report may be a file: a terminal that shows it executes what it holds.
    yield indented(_in_lines((f"{test.where}: " if _is_news(test) else "") + test.message))
    if test.traceback:
        yield indented(_in_lines(test.traceback), "    ")
    for logged in test.logs:
        yield indented(_in_lines(f"[{logged.level}] {logged.text}"))


def _is_news(test: TestResult) -> bool:
    """Whether the place of a failure is not in its message, as it is in that of Lua's errors: for an error that was
    raised again, the place where it was raised first.
    """
    return bool(test.where) and not (test.message.startswith(test.where) or _PLACE.match(test.message))


def summary(report: Report) -> str:
    """One line: how many tests there were."""
    counts = [f"{report.count(status)} {status.value}" for status in Status if report.count(status)]
    return f"{', '.join(counts) or 'no tests'} in {report.wall_s:.2f} s ({plural(len(report.files), 'file')})"


def plain(report: Report) -> str:
    """The whole report for people."""
    lines = [line for file in report.files for line in of_file(file)]
    return "\n".join([*lines, *failures(report), "", summary(report), ""])


def failures(report: Report) -> list[str]:
    """The lines about all failed tests."""
    return [
        line
        for file, test in report.tests
        if test.status is Status.FAILED
        for line in ("", *details(file, test))
    ]  # fmt: skip


# ---- TAP ------------------------------------------------------------------------------------------------------------


def tap(report: Report) -> str:
    """TAP version 14 (https://testanything.org/tap-version-14-specification.html), without subtests."""
    lines = ["TAP version 14", f"1..{len(report.tests)}"]
    for number, (file, test) in enumerate(report.tests, 1):
        result = "not ok" if test.status is Status.FAILED else "ok"
        skip = f" # SKIP {_tap_text(test.message)}" if test.status is Status.SKIPPED else ""
        lines.append(f"{result} {number} - {_tap_text(f'{file.shown}: {test.name}')}{skip}")
        if test.status is Status.FAILED:
            lines += ["  ---", *(f"  {key}: {json.dumps(value)}" for key, value in _diagnosis(file, test)), "  ..."]
    return "\n".join([*lines, ""])


def _tap_text(text: str) -> str:
    """A description: in one line, and no `#` in it begins a directive."""
    return _visible(text, _CONTROL).replace("\\", "\\\\").replace("#", "\\#")


def _diagnosis(file: FileResult, test: TestResult) -> Iterator[tuple[str, object]]:
    """What is known of a failure. Values are written as JSON, which is YAML."""
    yield "message", test.message
    yield "severity", "error" if test.is_error else "fail"
    yield "at", {"file": file.shown, "line": test.line}
    if test.where:
        yield "where", test.where
    if test.traceback:
        yield "traceback", test.traceback.splitlines()
    if test.logs:
        yield "log", [f"[{line.level}] {line.text}" for line in test.logs]
    yield "duration_ms", round(test.wall_s * 1000, 3)


# ---- JUnit ----------------------------------------------------------------------------------------------------------


def junit(report: Report) -> str:
    """JUnit XML as CI systems read it: one suite a file."""
    root = ElementTree.Element("testsuites", {"name": "engine test", **_totals(report, report.wall_s)})
    for file in report.files:
        one = Report([file], sum(test.wall_s for test in file.tests))
        suite = ElementTree.SubElement(root, "testsuite", {"name": _in_lines(file.shown), **_totals(one, one.wall_s)})
        for test in file.tests:
            _case(ElementTree.SubElement(suite, "testcase"), file, test)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _totals(report: Report, wall_s: float) -> dict[str, str]:
    failed = [test for _, test in report.tests if test.status is Status.FAILED]
    errors = sum(test.is_error for test in failed)
    return {
        "tests": str(len(report.tests)),
        "failures": str(len(failed) - errors),
        "errors": str(errors),
        "skipped": str(report.count(Status.SKIPPED)),
        "time": f"{wall_s:.6f}",
    }


def _case(case: ElementTree.Element, file: FileResult, test: TestResult) -> None:
    classname = file.shown.removesuffix(".lua").replace("/", ".")
    case.attrib |= {"name": _in_lines(test.name), "classname": _in_lines(classname), "time": f"{test.wall_s:.6f}"}
    case.attrib |= {"file": _in_lines(file.shown), "line": str(test.line)}
    if test.status is Status.SKIPPED:
        ElementTree.SubElement(case, "skipped", {"message": _in_lines(test.message)})
    elif test.status is Status.FAILED:
        first = test.message.partition("\n")[0]
        kind = "error" if test.is_error else "failure"
        found = ElementTree.SubElement(case, kind, {"message": _in_lines(first), "type": kind})
        found.text = _in_lines("\n".join(filter(None, (test.where, test.message, test.traceback))))
    if test.logs:
        out = ElementTree.SubElement(case, "system-out")
        out.text = _in_lines("\n".join(f"[{line.level}] {line.text}" for line in test.logs))


def _in_lines(text: str) -> str:
    """A text that may have several lines, for people and for XML."""
    return _visible(text, _NOT_XML)


WRITERS: Mapping[Format, Callable[[Report], str]] = {"plain": plain, "tap": tap, "junit": junit}


# ---- coverage -------------------------------------------------------------------------------------------------------

Executed = Mapping[Path, Mapping[int, int]]


def percent(executed: Executed) -> float:
    """The share of executable lines that were executed, in percent; 100 if there are none."""
    lines = sum(map(len, executed.values()))
    hit = sum(sum(map(bool, counts.values())) for counts in executed.values())
    return 100.0 if not lines else 100 * hit / lines


def coverage_rows(executed: Executed, name_of: Callable[[Path], str]) -> list[tuple[str, str, str, str, str]]:
    """A row for each file and one for all: file, executable lines, executed ones, percent, lines without execution."""
    rows = []
    for path, counts in sorted(executed.items()):
        hit = sum(map(bool, counts.values()))
        missing = _ranges([line for line, count in sorted(counts.items()) if not count], sorted(counts))
        share = percent({path: counts})
        rows.append((name_of(path), str(len(counts)), str(hit), f"{share:.1f}%", missing))
    lines, hits = (sum(int(row[column]) for row in rows) for column in (1, 2))
    return [*rows, ("total", str(lines), str(hits), f"{percent(executed):.1f}%", "")]


def _ranges(missing: list[int], all_lines: list[int]) -> str:
    """`14, 20-22`: lines with nothing executed between them in one range."""
    wanted, ranges = set(missing), list[list[int]]()
    joined = False
    for line in all_lines:
        if line not in wanted:
            joined = False
        elif joined:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
            joined = True
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def lcov(executed: Executed) -> str:
    """A tracefile as geninfo(1) describes it, for editors and CI systems."""
    lines = []
    for path, counts in sorted(executed.items()):
        lines += ["TN:", f"SF:{_visible(str(path), _CONTROL)}"]
        lines += [f"DA:{line},{count}" for line, count in sorted(counts.items())]
        lines += [f"LF:{len(counts)}", f"LH:{sum(map(bool, counts.values()))}", "end_of_record"]
    return "\n".join([*lines, ""])
