"""What holds for the tests themselves, and for what runs them: `make quick`, `make test`, `.ci/run`."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
QUICK = TESTS / "quick.txt"
# Plugins' own ways to run a test again: they give no reason.
_WITHOUT_REASON = ("flaky", "reruns")


def reruns_without_reason(source: str) -> Iterator[int]:
    """The lines of a module that have a test run again and do not say why."""
    if not re.search("|".join(("rerun", *_WITHOUT_REASON)), source):  # most modules, and parsing takes longer
        return
    tree = ast.parse(source)
    reasoned = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rerun":
            given = [each.value for each in node.keywords if each.arg == "reason"]
            if not node.args and any(isinstance(each, ast.Constant) and str(each.value).strip() for each in given):
                reasoned.add(node.func)
    marks = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_mark(node.value)]
    for mark in marks:
        if mark.attr in _WITHOUT_REASON or (mark.attr == "rerun" and mark not in reasoned):
            yield mark.lineno


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "mark"


def test_every_test_that_ci_runs_again_says_why() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for line in reruns_without_reason(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "marker", ["rerun", "rerun()", "rerun('why')", "rerun(reason='')", "rerun(reason=WHY)", "flaky(reruns=2)"]
)
def test_a_rerun_without_a_reason_is_found(marker: str) -> None:
    sound = "@pytest.mark.rerun(reason='a second process takes the core')\ndef test_one(): pass\n"
    assert list(reruns_without_reason(sound)) == []
    assert list(reruns_without_reason(f"{sound}@pytest.mark.{marker}\ndef test_two(): pass\n")) == [3]
    assert list(reruns_without_reason(f"{sound}pytestmark = [pytest.mark.{marker}]\n")) == [3]


def test_nothing_runs_tests_again_that_are_not_marked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    for text in (str(settings), *((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/run"))):
        assert not re.search(r"--reruns|--force-flaky|reruns\s*=", text)


def test_the_quick_suite_names_tests_that_there_are_of_every_package() -> None:
    lines = QUICK.read_text(encoding="utf-8").split()
    assert len(lines) == len(set(lines))
    for path, _, names in (line.partition("::") for line in lines):
        assert (ROOT / path).is_file(), path
        source = (ROOT / path).read_text(encoding="utf-8")
        functions = set(re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE))
        assert {names.partition("[")[0]} - {""} <= functions, (path, names)
    packages = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    # The two that are left out are a suite of another project's, and the short forms of what runs for hours.
    assert packages - {Path(line).parts[1] for line in lines} == {"conformance", "long"}


def test_the_interpreters_that_are_declared_are_those_that_ci_looks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    looked_for = re.search(r"for version in (.*); do", (ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert looked_for is not None
    assert looked_for[1].split()[: len(declared)] == declared  # it may look for a later one, which is not declared yet
    assert project["requires-python"] == f">={declared[0]}"
    told = f"Python {declared[0]} to {declared[-1]}"
    assert told in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
