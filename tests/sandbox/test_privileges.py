"""The engine as root, as an ordinary user, where namespaces are forbidden: it works, and says what is missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm_start

from sandbox.wire.layers import NAMES, parse_status

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("print_layers.py")
RUNS = ["ok", "timeout", "ok"]
# Ordinary but for one right: to read files of root, should the interpreter itself be installed there.
AS_USER = [
    *("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "--no-new-privs"),
    *("--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"),
    *("--bounding-set", "-all,+dac_read_search"),
]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")


def probe(*arguments: str, prefix: tuple[str, ...] | list[str] = ()) -> dict[str, object]:
    """What print_layers.py prints."""
    start = subprocess.run if prefix else warm_start.run
    done = start(
        [*prefix, sys.executable, str(PROBE), *arguments],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def states(answer: dict[str, object]) -> dict[str, str]:
    layers = answer["layers"]
    assert isinstance(layers, dict)
    return {name: state for name, (state, _) in layers.items()}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    """The states of the layers where none is turned off."""
    return states(probe("--require"))


def test_every_layer_is_reported_to_every_user() -> None:
    answer = probe()
    assert tuple(states(answer)) == NAMES
    assert answer["runs"] == RUNS


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_as_an_ordinary_user_it_works_and_says_that_workers_share_the_user() -> None:
    answer = probe(prefix=AS_USER)
    assert answer["runs"] == RUNS
    layers = answer["layers"]
    assert isinstance(layers, dict)
    assert layers["privileges"][0] == "active"
    assert "same user as the supervisor" in layers["privileges"][1]
    for name in ("process", "no_new_privs", "landlock", "rlimits", "seccomp"):
        assert layers[name][0] == "active", name


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_the_bounding_set_is_emptied_whichever_part_of_it_was_taken_away_before() -> None:
    drop = """
from sandbox.confine.privileges import drop_bounding_set
drop_bounding_set()
print(open("/proc/self/status").read())
"""
    for taken in ("-chown", "-all,+setpcap,+sys_admin"):  # chown is the first, and what containers often give up
        done = subprocess.run(
            ["setpriv", "--bounding-set", taken, sys.executable, "-c", drop], capture_output=True, cwd=ROOT, check=True
        )
        assert parse_status(done.stdout.decode())["CapBnd"] == "0" * 16


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_where_namespaces_are_forbidden_it_works_and_names_the_errno() -> None:
    answer = probe("--forbid-namespaces", prefix=AS_USER)
    assert answer["runs"] == RUNS
    layers = answer["layers"]
    assert isinstance(layers, dict)
    for name in ("namespaces", "empty_root"):
        assert layers[name] == ["unavailable", "EPERM: Operation not permitted"]
    assert layers["seccomp"][0] == layers["landlock"][0] == "active"


def test_namespaces_forbidden_and_required_refuses_to_start() -> None:
    answer = probe("--forbid-namespaces", "--require", "seccomp", "namespaces")
    assert "namespaces is unavailable (EPERM" in str(answer["refused"])


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"process"}))
def test_a_layer_that_is_turned_off_shows_in_the_report_and_the_others_stay(name: str, before: dict[str, str]) -> None:
    answer = probe("--disable", name, "--require")
    after = states(answer)
    assert after[name] == "off"
    others = {other: state for other, state in after.items() if other != name}
    # Without no-new-privileges an ordinary user may install neither of the two that need it; root may.
    if name == "no_new_privs" and os.geteuid() != 0:
        others |= {"landlock": before["landlock"], "seccomp": before["seccomp"]}
    if name == "no_new_privs" and after["privileges"] == "active":
        # Having given up CAP_SYS_ADMIN, root is an ordinary user here.
        others |= {"landlock": before["landlock"], "seccomp": before["seccomp"]}
    assert others == {other: state for other, state in before.items() if other != name}
    assert answer["runs"] == RUNS


@pytest.mark.parametrize("name", ["seccomp", "no_new_privs", "rlimits"])
def test_a_required_layer_that_is_turned_off_refuses_to_start_and_says_which(name: str) -> None:
    answer = probe("--disable", name)
    assert f"{name} is off" in str(answer["refused"])
