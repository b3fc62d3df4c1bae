"""The official conformance suite, in its pinned version, against the server with the suite's fixtures.

Every scored scenario of both revisions passes, except those in `expected-failures.yml`, which says why. The suite
itself fails when one of those passes, so that the list stays true.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_start
from node_packages import INSTALLED, ROOT, SOURCE, node, program

FOLDER = Path(__file__).resolve().parent
SCORED = {"2026-07-28": 37, "2025-11-25": 30}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    node()
    command = [sys.executable, str(FOLDER / "fixtures.py"), "--bind", "127.0.0.1:0"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE_LOG": "error"}
    with warm_start.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"listening on (\S+)", process.stdout.readline())
            assert found, "the fixtures did not start"
            yield found[1]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def run(url: str, revision: str, output: Path) -> tuple[int, str, dict[str, list[str]]]:
    """The suite's exit status, what it printed, and the statuses of its checks by scenario."""
    command = [node(), program("conformance"), "server", "--url", url, "--requirements", revision, "-o", str(output)]
    expected = ["--expected-failures", str(FOLDER / f"expected-failures-{revision}.yml")]
    done = subprocess.run([*command, *expected], capture_output=True, text=True, timeout=120, check=False)
    checks = {
        re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", path.parent.name): [
            each["status"] for each in json.loads(path.read_text())
        ]
        for path in output.glob("*/checks.json")
    }
    return done.returncode, re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr), checks


def scored(revision: str) -> set[str]:
    """The scenarios for servers that the suite's own list of requirements names."""
    command = [node(), program("conformance"), "list", "--requirements", revision]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    servers = listed.partition("Server scenarios")[2].partition("Client scenarios")[0]
    return set(re.findall(r"^\s+- (\S+)$", servers, re.MULTILINE))


def expected_failures(revision: str) -> set[str]:
    text = (FOLDER / f"expected-failures-{revision}.yml").read_text()
    return set(re.findall(r"^\s+- (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("revision", SCORED)
def test_every_scored_scenario_passes_but_those_with_a_reason(url: str, revision: str, tmp_path: Path) -> None:
    status, printed, checks = run(url, revision, tmp_path)
    assert status == 0, printed[-4000:]
    wanted = scored(revision)
    assert len(wanted) == SCORED[revision]
    excused = expected_failures(revision)
    assert excused < wanted
    for scenario in wanted - excused:
        # A scenario that did not run, or of which every check was left out, has not passed.
        assert "SUCCESS" in checks[scenario], scenario
        assert not {"FAILURE", "WARNING"} & set(checks[scenario]), scenario


def test_the_version_of_the_suite_is_the_pinned_one() -> None:
    node()
    pinned = json.loads((SOURCE / "package.json").read_text())["dependencies"]["@modelcontextprotocol/conformance"]
    package = INSTALLED / "node_modules/@modelcontextprotocol/conformance/package.json"
    assert json.loads(package.read_text())["version"] == pinned == "0.2.0-alpha.12"


def test_the_lock_file_names_no_host() -> None:
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert len(packages) > 100
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name
